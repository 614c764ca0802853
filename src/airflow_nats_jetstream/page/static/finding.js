// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** A problem that the overview has found: what it is, what to do, where to look, and what this page can do about it. */

import { withTimes } from "./clock.js";
import { ActionButton } from "./dialog.js";
import { ClaimLink, DagLink, h, LINE, LinkButton, Name, TaskLink } from "./elements.js";
import { dagPath, queryOf, taskPath } from "./places.js";

/** @import { Finding } from "./api.js" */

const { Alert, Badge, Box, Button, Grid, Heading, Stack, Text } = globalThis.ChakraUI;
const { useState } = globalThis.React;
const { useLocation } = globalThis.ReactRouterDOM;

/** What a finding is about. Empty strings: the whole connection, or a whole stream.
 * @typedef {{ connection: string, stream: string, consumer: string, letters: string }} Subject */

/** @param {{ finding: Finding, subject: Subject }} properties */
function FindingBox({ finding, subject }) {
  const { level, cause, effect, remedy } = finding;
  return h(
    Alert.Root,
    { status: level, variant: "outline", alignItems: "flex-start", borderStartWidth: 4, borderColor: `${level}.solid`, py: 3 },
    h(Alert.Indicator, { "aria-hidden": true, mt: 0.5 }),
    h(
      Grid,
      { flex: 1, minWidth: 0, color: "fg", fontSize: "sm", gap: { base: 2, lg: 6 }, templateColumns: { base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) 17rem 9rem" } },
      h(
        Box,
        { minWidth: 0, overflowWrap: "anywhere" },
        h(
          Alert.Title,
          { color: "fg", fontSize: "sm", fontWeight: "bold", lineHeight: 1.5 },
          h(Badge, { colorPalette: level, mr: 2, verticalAlign: "baseline" }, level === "error" ? "Error" : "Warning"),
          h(Name, { text: withTimes(cause), limit: 600 }),
        ),
        h(
          Alert.Description,
          { color: "fg", fontSize: "sm", mt: 1 },
          effect === "" ? null : h(Text, null, h(Name, { text: withTimes(effect), limit: 600 })),
          h(Text, { mt: 1 }, h(Name, { text: withTimes(remedy), limit: 600 })),
        ),
      ),
      h(Links, { finding, subject }),
      h(Box, { display: onlyWide(finding.action === null), justifySelf: { base: "start", lg: "end" } }, h(Repair, { finding, subject })),
    ),
  );
}

/**
 * An empty column keeps its place on a wide screen only.
 *
 * @param {boolean} empty
 */
const onlyWide = (empty) => ({ base: empty ? "none" : "flex", lg: "flex" });

/**
 * What the finding is about, one below the other.
 *
 * @param {{ finding: Finding, subject: Subject }} properties
 */
function Links({ finding: { task, dag, claim }, subject: { connection, stream, consumer } }) {
  const about = [stream, consumer].filter((name) => name !== "");
  return h(
    Stack,
    { display: onlyWide(about.length === 0 && task === null && dag === null && claim === ""), gap: 1, minWidth: 0, overflowWrap: "anywhere" },
    about.length === 0 ? null : h(Text, { color: "fg.muted" }, h(Name, { text: about.join(" / ") })),
    task === null ? null : h(TaskLink, { task }),
    dag === null ? null : h(DagLink, { dag }),
    claim === "" ? null : h(Box, null, "Claim ", h(ClaimLink, { connection, id: claim })),
  );
}

/**
 * The one button of a finding.
 *
 * @param {{ finding: Finding, subject: Subject }} properties
 */
function Repair({ finding: { action, task, dag, claim }, subject: { connection, stream, consumer, letters } }) {
  const { pathname } = useLocation();
  switch (action) {
    case "dead_letters":
      return h(LinkButton, { to: { pathname, search: queryOf({ view: "letters", connection, stream: letters, consumer }) } }, "See dead letters");
    case "task":
      return h(LinkButton, { to: task && taskPath(task) }, "Open the task");
    case "dag":
      return h(LinkButton, { to: dag && dagPath(dag.dag_id) }, "Open the Dag");
    case "release":
      return h(ActionButton, { action: { kind: action, connection, claim } });
    case "resume":
    case "reset":
      return consumer === "" ? null : h(ActionButton, { action: { kind: action, connection, stream, consumer } });
    default:
      return null;
  }
}

/** @param {{ finding: Finding }} properties */
const severity = ({ finding }) => (finding.level === "error" ? 0 : 1);

/** Findings that are listed before the user asks for all. */
const FIRST = 8;

/**
 * All findings of a connection, errors first.
 *
 * @param {{ findings: ReadonlyArray<{ finding: Finding, subject: Subject }> }} properties
 */
export function Findings({ findings }) {
  const [all, setAll] = useState(false);
  if (findings.length === 0) {
    return h(
      Alert.Root,
      { status: "success", variant: "outline", role: "status", borderColor: LINE },
      h(Alert.Indicator, { "aria-hidden": true }),
      h(Alert.Title, { color: "fg", fontSize: "sm" }, "Nothing needs attention"),
    );
  }
  const sorted = findings.toSorted((one, other) => severity(one) - severity(other));
  const shown = all ? sorted : sorted.slice(0, FIRST);
  return h(
    Stack,
    { as: "section", "aria-labelledby": "jetstream-findings", gap: 2 },
    h(Heading, { as: "h2", id: "jetstream-findings", size: "md" }, `Needs attention (${findings.length})`),
    h(
      Stack,
      { as: "ul", role: "list", listStyleType: "none", gap: 2 },
      shown.map(({ finding, subject }, index) =>
        h(Box, { as: "li", key: index }, h(FindingBox, { finding, subject })),
      ),
    ),
    sorted.length > shown.length
      ? h(Button, { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", alignSelf: "start", onClick: () => setAll(true) }, `Show all ${findings.length}`)
      : null,
  );
}
