// @ts-check
// SPDX-License-Identifier: Apache-2.0
/**
 * Strings from messages, headers, subjects, the ledger and the server, in a form in which they cannot mislead the
 * reader. The result is always displayed as a text node.
 */

/** Characters that are not visible, or that change how the characters around them are displayed: control characters,
 * bidirectional marks, zero-width characters, line separators, invisible fillers and halves of surrogate pairs. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

/** @type {Readonly<Record<string, string>>} */
const NAMED = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** @param {string} character */
function escaped(character) {
  const code = /** @type {number} */ (character.codePointAt(0)).toString(16);
  return NAMED[character] ?? (code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`);
}

/**
 * A string on one line, with every hidden character as an escape.
 *
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN, escaped);
}

/**
 * A string of several lines: line feeds remain, and every other hidden character is shown as an escape.
 *
 * @param {string} text
 */
export function visibleLines(text) {
  return text.split("\n").map(visible).join("\n");
}

/**
 * A string on one line with at most `limit` characters, of which the last is an ellipsis if something was cut.
 *
 * @param {string} text
 * @param {number} limit
 */
export function shortened(text, limit) {
  if (text.length <= limit) return visible(text);
  return `${visible(text.slice(0, limit - 1).replace(/[\ud800-\udbff]$/, ""))}…`;
}

/**
 * A JSON value as indented lines. A string is displayed without quotes.
 *
 * @param {unknown} value
 */
export function visibleJson(value) {
  return visibleLines(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

/**
 * An error's message as a sentence.
 *
 * @param {string} message
 */
export function sentence(message) {
  const whole = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?…]$/.test(whole) ? whole : `${whole}.`;
}
