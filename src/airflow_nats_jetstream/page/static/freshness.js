// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Whether the displayed numbers are current, and if they are not, why and since when. */

import { refresh } from "./answers.js";
import { timeOfDay } from "./clock.js";
import { h, LINE, LoginLink, Name } from "./elements.js";
import { duration } from "./quantities.js";

/** @import { Answer } from "./answers.js" */

const { Alert, Button, HStack, Spinner, Text } = globalThis.ChakraUI;

/**
 * Nothing while the newest request succeeded; a sentence after a failure; a spinner before the first answer.
 *
 * @param {{ answer: Answer<any> }} properties
 */
export function Freshness({ answer: { data, at, fault, retry } }) {
  if (fault === null) {
    return data === undefined ? h(HStack, { role: "status", gap: 2, py: 4 }, h(Spinner, { size: "sm" }), h(Text, null, "Loading…")) : null;
  }
  const old = data === undefined ? "" : `What is displayed below is from ${timeOfDay(at)} and is no longer updated. `;
  return h(
    Alert.Root,
    { status: fault.expired ? "warning" : "error", role: "alert", alignItems: "flex-start", mb: 3 },
    h(Alert.Indicator, { "aria-hidden": true }),
    h(
      Alert.Content,
      { overflowWrap: "anywhere", gap: 1 },
      h(Alert.Title, null, h(Name, { text: fault.message, limit: 1_000 })),
      h(
        Alert.Description,
        null,
        old,
        fault.expired ? h(LoginLink) : retry > 0 ? `The page asks again in ${duration(retry)}.` : "",
      ),
      retry === 0 ? null : h(Button, { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", alignSelf: "start", onClick: refresh }, "Ask now"),
    ),
  );
}
