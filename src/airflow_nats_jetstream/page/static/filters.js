// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Fields that filter a list, and the links between its pages. */

import { h, PlaceLink, UNSEEN } from "./elements.js";
import { count } from "./quantities.js";
import { shortened } from "./text.js";

/** @import { Place } from "./places.js" */

const { Button, Field, HStack, Input, NativeSelect, Text } = globalThis.ChakraUI;
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
        { value, onChange: (/** @type {{ target: HTMLSelectElement }} */ event) => choose(event.target.value) },
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
        size: "sm",
        value: text,
        maxLength: 250,
        onChange: (/** @type {{ target: HTMLInputElement }} */ event) => setText(event.target.value),
      }),
    ),
    h(Button, { type: "submit", variant: "outline" }, verb),
  );
}

/** @param {{ children?: Child }} properties */
export function Filters({ children }) {
  return h(HStack, { alignItems: "flex-end", flexWrap: "wrap", gap: 3, mb: 2 }, children);
}

/**
 * "51–100 of 1,000" with links to the previous and the next page.
 *
 * @param {{
 *   label: string, text: string, previous: Partial<Place> | null, following: Partial<Place> | null,
 * }} properties
 */
export function Pages({ label, text, previous, following }) {
  return h(
    HStack,
    { as: "nav", "aria-label": label, gap: 4, mt: 3, flexWrap: "wrap" },
    h(Text, { "aria-live": "polite", color: "fg.muted", fontSize: "sm" }, text),
    h(Step, { place: previous, text: "Previous" }),
    h(Step, { place: following, text: "Next" }),
  );
}

/** @param {{ place: Partial<Place> | null, text: string }} properties */
function Step({ place, text }) {
  if (place === null) return h(Button, { size: "xs", variant: "outline", disabled: true }, text);
  return h(PlaceLink, { place }, text);
}

/**
 * Which rows of a list are displayed.
 *
 * @param {number} offset
 * @param {number} shown
 * @param {number} total
 */
export function range(offset, shown, total) {
  return shown === 0 ? `none of ${count(total)}` : `${count(offset + 1)}–${count(offset + shown)} of ${count(total)}`;
}
