// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Fields that filter a list. */

import { h, LINE, UNSEEN } from "./elements.js";
import { shortened } from "./text.js";

const { Button, Field, HStack, Input, NativeSelect } = globalThis.ChakraUI;
const { useState } = globalThis.React;

/**
 * @param {{
 *   label: string, value: string, options: ReadonlyArray<readonly [value: string, text: string]>,
 *   choose: (value: string) => void, silent?: boolean,
 * }} properties A value that is not an option is offered as well, because an address can contain any. `silent` leaves the
 *   label to screen readers.
 */
export function Choice({ label, value, options, choose, silent = false }) {
  const all = options.some(([each]) => each === value) ? options : [...options, /** @type {const} */ ([value, value])];
  return h(
    Field.Root,
    { width: silent ? "auto" : { base: "100%", md: "auto" }, maxWidth: "100%" },
    h(Field.Label, silent ? { css: UNSEEN } : null, label),
    h(
      NativeSelect.Root,
      { size: "sm", maxWidth: { base: "100%", md: "16rem" } },
      h(
        NativeSelect.Field,
        { borderColor: LINE, value, onChange: (/** @type {{ target: HTMLSelectElement }} */ event) => choose(event.target.value) },
        all.map(([each, text]) => h("option", { key: each, value: each }, shortened(text, 60))),
      ),
      h(NativeSelect.Indicator),
    ),
  );
}

/**
 * A filter that is typed, with a button that applies it.
 *
 * @param {{ label: string, value: string, verb: string, choose: (value: string) => void }} properties
 */
export function Typed({ label, value, verb, choose }) {
  const [text, setText] = useState(value);
  return h(
    HStack,
    {
      as: "form",
      role: "search",
      "aria-label": label,
      alignItems: "flex-end",
      gap: 2,
      onSubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        choose(text.trim());
      },
    },
    h(
      Field.Root,
      null,
      h(Field.Label, null, label),
      h(Input, {
        borderColor: LINE,
        size: "sm",
        value: text,
        maxLength: 250,
        onChange: (/** @type {{ target: HTMLInputElement }} */ event) => setText(event.target.value),
      }),
    ),
    h(Button, { type: "submit", borderColor: LINE, variant: "outline" }, verb),
  );
}

/** @param {{ children?: Child }} properties */
export function Filters({ children }) {
  return h(HStack, { alignItems: "flex-end", flexWrap: "wrap", gap: 3, mb: 2 }, children);
}
