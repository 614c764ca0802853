// @ts-check
// SPDX-License-Identifier: Apache-2.0
/**
 * The state of the dialog that confirms an action, without I/O. The dialog first fetches the action's preview, then
 * waits for the user, then sends the action. After a refusal it fetches the preview again, so that the user decides on
 * the new state.
 */

/** @import { Preview } from "./api.js" */

/**
 * - asking: the preview is being fetched; ready: the user decides; sending: the action is being carried out;
 *   done: it was carried out; failed: the preview could not be fetched.
 * @typedef {"asking" | "ready" | "sending" | "done" | "failed"} Phase
 */

/**
 * - revision: what the preview depends on. It is sent with the action.
 * - text: what will happen, and in the phase done what has happened.
 * - note: why the previous request was refused or failed; empty if there was none.
 * - alive: the holder of the claim was heard, so releasing it needs a further confirmation.
 * - unknown: the page cannot listen long enough to know whether the holder is alive; this needs one, too.
 * @typedef {{
 *   phase: Phase, revision: string, text: string, dangerous: boolean, silence: number,
 *   typed: string, note: string, alive: boolean, unknown: boolean, expired: boolean,
 * }} Confirmation
 */

/** @typedef {{ status: number, type: string, message: string }} Refusal */

/**
 * @typedef {{ type: "previewed", preview: Preview }
 *   | { type: "unavailable", fault: Refusal }
 *   | { type: "edited" }
 *   | { type: "typed", text: string }
 *   | { type: "sent" }
 *   | { type: "refused", fault: Refusal }
 *   | { type: "succeeded", text: string }} Event
 */

/** @type {Readonly<Confirmation>} */
export const BEGIN = {
  phase: "asking", revision: "", text: "", dangerous: false, silence: 0, typed: "", note: "", alive: false, unknown: false, expired: false,
};

/**
 * @param {Confirmation} state
 * @param {Event} event
 * @returns {Confirmation}
 */
export function next(state, event) {
  switch (event.type) {
    case "previewed":
      return { ...state, ...shown(event.preview, state.alive || state.unknown), phase: "ready" };
    case "unavailable":
      return { ...state, phase: "failed", note: event.fault.message, expired: event.fault.status === 401 };
    case "edited":
      return BEGIN;
    case "typed":
      return { ...state, typed: event.text };
    case "sent":
      return { ...state, phase: "sending", note: "" };
    case "refused":
      return refused(event.fault);
    case "succeeded":
      return { ...state, phase: "done", text: event.text, note: "" };
  }
}

/**
 * @param {Preview} preview
 * @param {boolean} doubtful whether the holder is or may be alive
 */
function shown(preview, doubtful) {
  const { revision, text, dangerous, silence = 0 } = preview;
  return { revision, text, dangerous: dangerous || doubtful, silence };
}

/**
 * @param {Refusal} fault
 * @returns {Confirmation}
 */
function refused(fault) {
  if (fault.status === 401) return { ...BEGIN, phase: "failed", note: fault.message, expired: true };
  return { ...BEGIN, note: fault.message, alive: fault.type === "HolderAlive", unknown: fault.type === "HolderUnknown" };
}

/**
 * Whether the action may be sent: its preview was shown, and for a dangerous action the user has typed `word`.
 *
 * @param {Confirmation} state
 * @param {string} word
 */
export function confirmed(state, word) {
  return state.phase === "ready" && (!state.dangerous || state.typed.trim() === word);
}
