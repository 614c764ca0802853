// @ts-check
// SPDX-License-Identifier: Apache-2.0
/**
 * The page "JetStream" of Airflow's UI: what waits, what is held, what failed.
 *
 * Airflow imports this module and displays the component `globalThis.JetStream`. React, its router and Chakra UI are
 * those of Airflow's own pages, so the page follows Airflow's theme, and nothing has to be built.
 */

import { useAnswer } from "./answers.js";
import { recordBacklogs } from "./backlog.js";
import { ClaimView } from "./claim.js";
import { ClaimsView } from "./claims.js";
import { timeOfDay } from "./clock.js";
import { ActContext, ActionDialog } from "./dialog.js";
import { h, LINE } from "./elements.js";
import { INTERVAL } from "./fault.js";
import { Choice } from "./filters.js";
import { Freshness } from "./freshness.js";
import { LettersView } from "./letters.js";
import { OverviewView } from "./overview.js";
import { path, placeOf, queryOf } from "./places.js";
import { count } from "./quantities.js";

/** @import { Answer } from "./answers.js" */
/** @import { Action } from "./actions.js" */
/** @import { Connection, Overview } from "./api.js" */
/** @import { Place, View } from "./places.js" */

const { Box, Heading, HStack, Link, Text } = globalThis.ChakraUI;
const { useEffect, useRef, useState } = globalThis.React;
const { Link: RouterLink, useLocation, useNavigate, useSearchParams } = globalThis.ReactRouterDOM;

/** Seconds between two requests for the overview while another view is displayed, for its numbers and filters. */
const ELSEWHERE = 30;
/** Seconds between two requests for the list of connections. */
const CONNECTIONS = 60;

/** Whether Airflow displays the component itself by now. */
let mounted = false;

/**
 * Airflow first displays the component within the wrapper that has loaded it, and from the next navigation on without
 * it. React then mounts the component anew, and the focus, typed text and an open dialog are lost. So the first
 * navigation, to the same place, happens at once.
 */
function useMountedOnce() {
  const navigate = useNavigate();
  const { pathname, search, state } = useLocation();
  useEffect(() => {
    if (mounted) return;
    mounted = true;
    void navigate({ pathname, search }, { replace: true, state });
  }, [navigate, pathname, search, state]);
}

function JetStream() {
  useMountedOnce();
  const [parameters] = useSearchParams();
  const asked = placeOf((name) => parameters.get(name));
  const connections = /** @type {Answer<{ connections: Connection[] }>} */ (useAnswer("connections", CONNECTIONS));
  const known = connections.data?.connections ?? [];
  const connection = asked.connection || known[0]?.id || "";
  return h(
    Box,
    { as: "main", "aria-label": "JetStream", fontSize: "sm", height: "100%", overflow: "auto", p: 2 },
    connection === ""
      ? h(NoConnection, { connections })
      : h(Page, { place: { ...asked, connection }, known, connections }),
  );
}

/** @param {{ connections: Answer<{ connections: Connection[] }> }} properties */
function NoConnection({ connections }) {
  return h(
    Box,
    null,
    h(Heading, { as: "h1", size: "xl" }, "JetStream"),
    h(Freshness, { answer: connections }),
    connections.data === undefined
      ? null
      : h(
          Text,
          { mt: 3 },
          "There is no connection of type NATS that you may see. Create one under ",
          h(Link, { asChild: true, color: "fg.info" }, h(RouterLink, { to: "/connections" }, "Admin, Connections")),
          ", or ask an administrator of Airflow.",
        ),
  );
}

/** The dialog of an action, and the element that had the focus when it was opened.
 * @typedef {{ action: Action, number: number, open: boolean, opener: Element | null }} Opened */

/**
 * @param {{ place: Place, known: Connection[], connections: Answer<{ connections: Connection[] }> }} properties
 */
function Page({ place, known, connections }) {
  const navigate = useNavigate();
  const { pathname } = useLocation();
  const [dialog, setDialog] = useState(/** @type {Opened | null} */ (null));
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  const found = path("connections", place.connection, "overview");
  const overview = /** @type {Answer<Overview>} */ (useAnswer(found, place.view === "overview" ? INTERVAL : ELSEWHERE));
  if (overview.data !== undefined) recordBacklogs(overview.data);
  /** @param {Partial<Place>} changed */
  const go = (changed) => void navigate({ pathname, search: queryOf({ ...place, ...changed }) });
  /** @param {Action} action */
  const act = (action) => {
    setDialog({ action, number: (dialog?.number ?? 0) + 1, open: true, opener: document.activeElement });
  };
  // Connections in secrets backends are not listed.
  const may = overview.data?.may_act ?? known.find(({ id }) => id === place.connection)?.may_act ?? false;
  return h(
    ActContext.Provider,
    { value: may ? act : null },
    h(
      HStack,
      { gap: 4, flexWrap: "wrap", alignItems: "center" },
      h(Heading, { as: "h1", size: "xl", ref: heading, tabIndex: -1, outline: "none" }, "JetStream"),
      h(Connections, { known, place, go }),
      h(AsOf, { overview }),
    ),
    h(Views, { place, overview: overview.data }),
    connections.fault === null ? null : h(Freshness, { answer: connections }),
    h(Shown, { place, overview, go }),
    dialog === null
      ? null
      : h(ActionDialog, {
          key: dialog.number,
          action: dialog.action,
          open: dialog.open,
          onClose: () => setDialog({ ...dialog, open: false }),
          returnTo: () => (dialog.opener instanceof HTMLElement && dialog.opener.isConnected ? dialog.opener : heading.current),
        }),
  );
}

/**
 * @param {{ known: Connection[], place: Place, go: (changed: Partial<Place>) => void }} properties
 */
function Connections({ known, place, go }) {
  return h(Choice, {
    label: "Connection",
    silent: true,
    value: place.connection,
    options: known.map(({ id }) => /** @type {const} */ ([id, id])),
    choose: (connection) => go({ connection, stream: "", consumer: "", claim: "", offset: 0, after: 0 }),
  });
}

/** @param {{ overview: Answer<Overview> }} properties */
function AsOf({ overview: { data, at, fault } }) {
  if (data === undefined || fault !== null) return null;
  return h(Text, { color: "fg.muted", fontSize: "sm" }, `as of ${timeOfDay(data.now || at)}`);
}

/** @param {{ place: Place, overview: Overview | undefined }} properties */
function Views({ place: { view, connection, claim }, overview }) {
  const consumers = overview?.streams.flatMap((stream) => stream.consumers) ?? [];
  const open = consumers.reduce((sum, consumer) => sum + consumer.open, 0);
  const letters = overview?.streams.reduce((sum, stream) => sum + (stream.dead_letters.count ?? 0), 0);
  /** @type {ReadonlyArray<readonly [View, string]>} */
  const views = [
    ["overview", "Overview"],
    ["claims", `Open claims${overview === undefined ? "" : ` (${count(open)})`}`],
    ["claim", "One claim"],
    ["letters", `Dead letters${letters === undefined ? "" : ` (${count(letters)})`}`],
  ];
  return h(
    HStack,
    { as: "nav", "aria-label": "Views of this page", borderBottomWidth: 1, borderColor: LINE, gap: 0, flexWrap: "wrap", mb: 4, mt: 1 },
    views.map(([each, text]) => h(ViewLink, { key: each, current: each === view, text, place: { view: each, connection, claim } })),
  );
}

/** @param {{ current: boolean, text: string, place: Partial<Place> }} properties */
function ViewLink({ current, text, place }) {
  const { pathname } = useLocation();
  return h(
    Link,
    {
      asChild: true,
      borderBottomColor: "border.info",
      borderBottomWidth: current ? 3 : 0,
      borderRadius: 0,
      color: current ? "fg" : "fg.muted",
      fontWeight: "bold",
      height: "40px",
      mb: "-2px",
      pb: current ? 0 : "3px",
      px: { base: 2, md: 4 },
      _hover: { color: "fg", textDecoration: "none" },
    },
    h(RouterLink, { to: { pathname, search: queryOf(place) }, "aria-current": current ? "page" : undefined }, text),
  );
}

/**
 * @param {{ place: Place, overview: Answer<Overview>, go: (changed: Partial<Place>) => void }} properties
 */
function Shown({ place, overview, go }) {
  switch (place.view) {
    case "overview":
      return h(
        Box,
        null,
        h(Freshness, { answer: overview }),
        overview.data === undefined ? null : h(OverviewView, { overview: overview.data }),
      );
    case "claims":
      return h(ClaimsView, { place, overview: overview.data, go });
    case "claim":
      return h(ClaimView, { place, go });
    case "letters":
      return h(
        Box,
        null,
        overview.data === undefined && place.stream === "" ? h(Freshness, { answer: overview }) : null,
        h(LettersView, { place, overview: overview.data, go }),
      );
  }
}

Reflect.set(globalThis, "JetStream", JetStream);
