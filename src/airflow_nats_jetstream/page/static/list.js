// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The frame of a list: whether it is current, its table, and the links between its pages. */

import { h, LINE, PlaceLink } from "./elements.js";
import { Freshness } from "./freshness.js";
import { Table } from "./table.js";

/** @import { Answer } from "./answers.js" */
/** @import { Step, Steps } from "./pages.js" */

const { Box, Button, HStack, Text } = globalThis.ChakraUI;

/**
 * A page of a list.
 *
 * @param {{
 *   answer: Answer<any>, table: Parameters<typeof Table>[0], label: string, text: string, steps: Steps, children?: Child,
 * }} properties `label` names the links between the pages, and `text` says what the page contains. `children` are
 *   displayed above the table. Before the first answer, nothing of them is.
 */
export function List({ answer, table, label, text, steps: { previous, following }, children }) {
  return h(
    Box,
    null,
    h(Freshness, { answer }),
    answer.data === undefined
      ? null
      : h(
          Box,
          null,
          children,
          h(Table, table),
          h(
            HStack,
            { as: "nav", "aria-label": label, gap: 4, mt: 3, flexWrap: "wrap" },
            h(Text, { "aria-live": "polite", color: "fg.muted", fontSize: "sm" }, text),
            h(StepLink, { step: previous, otherwise: "Previous" }),
            h(StepLink, { step: following, otherwise: "Next" }),
          ),
        ),
  );
}

/** @param {{ step: Step | null, otherwise: string }} properties */
function StepLink({ step, otherwise }) {
  if (step === null) return h(Button, { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", disabled: true }, otherwise);
  return h(PlaceLink, { place: step.place, state: { before: step.before } }, step.text);
}
