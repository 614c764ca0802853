// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** A problem that the overview has found: what it is, what to do, where to look, and what this page can do about it. */

import { ActionButton } from "./dialog.js";
import { ClaimLink, DagLink, h, Name, PlaceLink, TaskLink } from "./elements.js";

/** @import { Finding } from "./api.js" */
/** @import { Action } from "./actions.js" */

const { Alert, Badge, Box, Button, Heading, HStack, Stack } = globalThis.ChakraUI;
const { useState } = globalThis.React;

/** What a finding is about. Empty strings: the whole connection, or a whole stream.
 * @typedef {{ connection: string, stream: string, consumer: string, letters: string }} Subject */

/**
 * @param {{ finding: Finding, subject: Subject, named: boolean }} properties `named` displays what the finding is about
 */
export function FindingBox({ finding, subject, named }) {
  const { level, text, remedy } = finding;
  const about = [subject.stream, subject.consumer].filter((name) => name !== "");
  return h(
    Alert.Root,
    { status: level, variant: "outline", size: "sm", alignItems: "flex-start", borderStartWidth: 4, borderColor: `${level}.solid`, py: 2 },
    h(Alert.Indicator, { "aria-hidden": true }),
    h(
      Alert.Content,
      { minWidth: 0, flexDirection: { base: "column", lg: "row" }, columnGap: 6, rowGap: 2, color: "fg" },
      h(
        Box,
        { flex: 1, minWidth: 0 },
        h(
          Alert.Title,
          { color: "fg", fontWeight: "semibold", overflowWrap: "anywhere" },
          h(Badge, { colorPalette: level, size: "sm", mr: 2, verticalAlign: "middle" }, level === "error" ? "Error" : "Warning"),
          named && about.length > 0 ? h(Box, { as: "span" }, h(Name, { text: about.join(" / ") }), ": ") : null,
          h(Name, { text, limit: 600 }),
        ),
        h(Alert.Description, { color: "fg", overflowWrap: "anywhere", mt: 1 }, h(Name, { text: remedy, limit: 600 })),
      ),
      h(Ways, { finding, subject }),
    ),
  );
}

/** @param {{ finding: Finding, subject: Subject }} properties */
function Ways({ finding, subject }) {
  const { task, dag, claim } = finding;
  const { connection } = subject;
  if (task === null && dag === null && claim === "" && finding.action === null) return null;
  return h(
    HStack,
    { columnGap: 4, rowGap: 1, flexWrap: "wrap", alignItems: "baseline", maxWidth: { lg: "45%" } },
    task === null ? null : h(TaskLink, { task }),
    dag === null ? null : h(DagLink, { dag }),
    claim === "" ? null : h(Box, null, "Claim ", h(ClaimLink, { connection, id: claim })),
    h(Repair, { finding, subject }),
  );
}

/** @param {{ finding: Finding, subject: Subject }} properties */
function Repair({ finding, subject: { connection, stream, consumer, letters } }) {
  if (finding.action === "dead_letters") {
    return h(PlaceLink, { place: { view: "letters", connection, stream: letters } }, "See the dead letters");
  }
  /** @type {Action | null} */
  const action =
    (finding.action === "resume" || finding.action === "reset") && consumer !== ""
      ? { kind: finding.action, connection, stream, consumer }
      : finding.action === "release" && finding.claim !== ""
        ? { kind: "release", connection, claim: finding.claim }
        : null;
  return action === null ? null : h(ActionButton, { action });
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
  if (findings.length === 0) return null;
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
        h(Box, { as: "li", key: index }, h(FindingBox, { finding, subject, named: true })),
      ),
    ),
    sorted.length > shown.length
      ? h(Button, { variant: "outline", size: "xs", alignSelf: "start", onClick: () => setAll(true) }, `Show all ${findings.length}`)
      : null,
  );
}
