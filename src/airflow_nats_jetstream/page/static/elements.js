// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The small parts that every view is made of. Strings from outside are shown by `Name`, as text nodes. */

import { dateAndTime } from "./clock.js";
import { count, duration } from "./quantities.js";
import { dagPath, loginAddress, queryOf, taskPath, webAddress } from "./places.js";
import { shortened, visible } from "./text.js";

/** @import { Task } from "./api.js" */
/** @import { Place } from "./places.js" */

const { Badge, Box, Button, Link, Span, Text } = globalThis.ChakraUI;
const { Link: RouterLink, useLocation } = globalThis.ReactRouterDOM;

export const h = globalThis.React.createElement;

/** The style of what only screen readers read. */
export const UNSEEN = {
  clipPath: "inset(50%)", height: "1px", overflow: "hidden", position: "absolute", whiteSpace: "nowrap", width: "1px",
};

/** The colour of lines and of the edges of buttons. Airflow's own can hardly be seen in the dark. */
export const LINE = { base: "border.emphasized", _dark: "gray.600" };

/**
 * A string from outside on one line, shortened, with the whole string as its tooltip.
 *
 * @param {{ text: string, limit?: number, mono?: boolean }} properties
 */
export function Name({ text, limit = 80, mono = false }) {
  const short = shortened(text, limit);
  const title = text.length > limit ? visible(text.slice(0, 2_000)) : undefined;
  return h(Span, { dir: "auto", overflowWrap: "anywhere", title, ...(mono ? { fontFamily: "mono" } : {}) }, short);
}

/**
 * A link to another place of this page.
 *
 * @param {{ place: Partial<Place>, state?: unknown, children?: Child }} properties `state` is kept in the browser's
 *   history, and not in the address
 */
export function PlaceLink({ place, state, children }) {
  const { pathname } = useLocation();
  return h(Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to: { pathname, search: queryOf(place) }, state }, children));
}

/**
 * A link to a page of Airflow, or plain text if there is no such page.
 *
 * @param {{ to: string | null, children?: Child }} properties
 */
function AirflowLink({ to, children }) {
  return to === null ? children : h(Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to }, children));
}

/**
 * A link that looks like a button, or nothing if there is no such page.
 *
 * @param {{ to: string | null | { pathname: string, search: string }, children?: Child }} properties
 */
export function LinkButton({ to, children }) {
  if (to === null) return null;
  return h(Button, { asChild: true, size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline" }, h(RouterLink, { to }, children));
}

/**
 * A task instance with its state, as a link if the user may see it.
 *
 * @param {{ task: Task | string | null, missing?: string }} properties
 */
export function TaskLink({ task, missing = "unknown" }) {
  if (task === null || task === "") return h(Text, { as: "span", color: "fg.muted" }, missing);
  if (typeof task === "string") return h(Name, { text: task });
  const mapped = task.map_index >= 0 ? `[${task.map_index}]` : "";
  const tried = task.try_number === null ? "" : `, try ${task.try_number}`;
  return h(
    Box,
    { as: "span", display: "inline-block", maxWidth: "100%" },
    h(AirflowLink, { to: taskPath(task) }, h(Name, { text: `${task.dag_id} / ${task.task_id}${mapped}${tried}` })),
    task.state === null ? null : h(Span, { ml: 2 }, h(TaskState, { state: task.state })),
    h(Text, { as: "span", display: "block", fontSize: "sm", color: "fg.muted" }, h(Name, { text: task.run_id, limit: 60 })),
  );
}

/** The states of a task for which Airflow's theme has a colour. */
const COLOURED = new Set([
  "success", "failed", "running", "queued", "scheduled", "deferred", "restarting", "skipped", "removed", "none",
  "up_for_retry", "up_for_reschedule", "upstream_failed",
]);

/** @param {{ state: string }} properties */
function TaskState({ state }) {
  const colorPalette = COLOURED.has(state) ? state : "gray";
  return h(Badge, { colorPalette, overflowWrap: "anywhere", size: "sm", variant: "subtle", whiteSpace: "normal" }, shortened(state.replaceAll("_", " "), 30));
}

/** @param {{ dag: { dag_id: string, paused: boolean } }} properties */
export function DagLink({ dag }) {
  return h(
    Span,
    null,
    "Dag ",
    h(AirflowLink, { to: dagPath(dag.dag_id) }, h(Name, { text: dag.dag_id })),
    dag.paused ? " (paused)" : "",
  );
}

/**
 * A link to another site, which opens in a new tab; plain text if the address is not a safe one.
 *
 * @param {{ address: string | null, text: string }} properties
 */
export function WebLink({ address, text }) {
  const href = address === null ? null : webAddress(address);
  if (href === null) return h(Name, { text });
  return h(Link, { color: "fg.info", href, target: "_blank", rel: "noopener noreferrer" }, h(Name, { text }), " (new tab)");
}

/** The link to Airflow's login page, which leads back to the present address. */
export function LoginLink() {
  const href = loginAddress(document.baseURI, globalThis.location.href);
  return h(Link, { color: "fg.info", fontWeight: "bold", href, textDecoration: "underline" }, "Log in");
}

/**
 * A link to a claim.
 *
 * @param {{ id: string, connection: string }} properties
 */
export function ClaimLink({ id, connection }) {
  const name = h(Span, { whiteSpace: { md: "nowrap" } }, h(Name, { text: id, limit: 24, mono: true }));
  return h(PlaceLink, { place: { view: "claim", connection, claim: id } }, name);
}

/** @param {{ at: string | null | undefined }} properties */
export function Time({ at }) {
  const text = dateAndTime(at);
  if (text === null || typeof at !== "string") return h(Span, { color: "fg.muted" }, "unknown time");
  return h("time", { dateTime: at, title: visible(at) }, text);
}

/** @param {{ seconds: number | null, at: string }} properties */
export function Age({ seconds, at }) {
  return h(Span, { title: dateAndTime(at) ?? undefined, whiteSpace: "nowrap" }, duration(seconds));
}

/**
 * A number; `missing` is displayed if there is none.
 *
 * @param {{ number: number | null, missing?: string }} properties
 */
export function Count({ number, missing = "?" }) {
  return h(Span, { fontVariantNumeric: "tabular-nums" }, number === null ? missing : count(number));
}

/** @type {Readonly<Record<string, string>>} */
const CLAIM_COLOURS = { open: "info", done: "success", failed: "failed", superseded: "gray" };

/** @param {{ state: string }} properties */
export function ClaimState({ state }) {
  return h(Badge, { colorPalette: CLAIM_COLOURS[state] ?? "gray", variant: "subtle" }, shortened(state, 20));
}
