// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Actions: the buttons that begin them, and the dialog that says what will happen and asks for a confirmation. */

import { actionPath, body, CHOICES, decision, objection, parameters, PAUSES, previewPath, title, verb, word } from "./actions.js";
import { refresh } from "./answers.js";
import { asFault, get, post } from "./api.js";
import { withTimes } from "./clock.js";
import { BEGIN, confirmed, next } from "./confirmation.js";
import { h, LINE, LoginLink, Name } from "./elements.js";
import { Fault, NO_ADDRESS } from "./fault.js";
import { duration } from "./quantities.js";

/** @import { Action, Choices } from "./actions.js" */
/** @import { Confirmation } from "./confirmation.js" */
/** @import { Preview } from "./api.js" */

const { Alert, Box, Button, CloseButton, Dialog, Field, HStack, Input, NativeSelect, Portal, Spinner, Stack, Text } =
  globalThis.ChakraUI;
const { createContext, useContext, useEffect, useReducer, useRef, useState } = globalThis.React;

/** Opens the dialog of an action; null if the user may not act on the connection.
 * @typedef {((action: Action) => void) | null} Acting */

export const ActContext = createContext(/** @type {Acting} */ (null));

/**
 * The button that opens the dialog of an action. Only users who may act see it.
 *
 * @param {{ action: Action, label?: string, disabled?: boolean }} properties `label` replaces the verb
 */
export function ActionButton({ action, label, disabled = false }) {
  const act = useContext(ActContext);
  if (act === null) return null;
  return h(
    Button,
    { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", disabled, "aria-haspopup": "dialog", onClick: () => act(action) },
    label ?? verb(action),
  );
}

/**
 * @param {{ action: Action, open: boolean, onClose: () => void, returnTo: () => HTMLElement | null }} properties
 *   `returnTo` is the element that gets the focus when the dialog is closed
 */
export function ActionDialog({ action, open, onClose, returnTo }) {
  const { state, dispatch, choices, choose, send, ask } = useConfirmation(action);
  const first = useRef(/** @type {HTMLElement | null} */ (null));
  const busy = state.phase === "sending";
  return h(
    Dialog.Root,
    {
      open,
      role: "alertdialog",
      size: "md",
      placement: "center",
      scrollBehavior: "inside",
      closeOnInteractOutside: false,
      closeOnEscape: !busy,
      finalFocusEl: returnTo,
      initialFocusEl: () => first.current,
      onOpenChange: (/** @type {{ open: boolean }} */ event) => (event.open || busy ? undefined : onClose()),
    },
    h(
      Portal,
      null,
      h(Dialog.Backdrop),
      h(
        Dialog.Positioner,
        null,
        h(
          Dialog.Content,
          { "aria-busy": busy || state.phase === "asking", mx: 2 },
          h(Dialog.Header, null, h(Dialog.Title, { overflowWrap: "anywhere" }, title(action))),
          h(
            Dialog.Body,
            null,
            h(
              Stack,
              { gap: 4 },
              state.phase === "done" ? null : h(ChoiceFields, { action, choices, choose, disabled: busy }),
              h(Note, { state, ask }),
              objection(action, choices) === "" ? h(Outlook, { action, state }) : null,
              h(TypedWord, { action, state, dispatch, send }),
            ),
          ),
          h(
            Dialog.Footer,
            { flexWrap: "wrap" },
            h(Button, { ref: first, variant: "outline", disabled: busy, onClick: onClose }, state.phase === "done" ? "Close" : "Cancel"),
            state.phase === "done"
              ? null
              : h(
                  Button,
                  {
                    colorPalette: state.dangerous ? "danger" : "brand",
                    disabled: !confirmed(state, word(action)) || objection(action, choices) !== "",
                    onClick: send,
                  },
                  decision(action, state),
                ),
          ),
          busy ? null : h(Dialog.CloseTrigger, { asChild: true }, h(CloseButton, { size: "sm", "aria-label": "Close" })),
        ),
      ),
    ),
  );
}

/**
 * The state of the dialog, and the requests that change it.
 *
 * @param {Action} action
 */
function useConfirmation(action) {
  const [state, dispatch] = useReducer(next, BEGIN);
  const [choices, setChoices] = useState(CHOICES);
  const [chosen, setChosen] = useState(() => parameters(action, CHOICES, Date.now()));
  const asking = state.phase === "asking" && objection(action, choices) === "";
  useEffect(() => {
    if (!asking) return undefined;
    const ended = new AbortController();
    // A moment later, so that a number that is being typed is not requested digit by digit.
    const timer = setTimeout(() => void preview(previewPath(action, chosen), ended.signal).then(dispatch, ignored), 200);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [asking, action, chosen]);
  return {
    state,
    dispatch,
    choices,
    choose: (/** @type {Partial<Choices>} */ changed) => {
      const now = { ...choices, ...changed };
      setChoices(now);
      if (objection(action, now) === "") setChosen(parameters(action, now, Date.now()));
      dispatch({ type: "edited" });
    },
    ask: () => dispatch({ type: "edited" }),
    send: () => {
      if (!confirmed(state, word(action))) return;
      dispatch({ type: "sent" });
      void carriedOut(action, chosen, state).then(dispatch);
    },
  };
}

/** The preview of a dialog that was closed, or of earlier choices, is not needed. */
function ignored() {}

/**
 * @param {string | null} path
 * @param {AbortSignal} signal
 * @returns {Promise<import("./confirmation.js").Event>} rejected after an abort
 */
async function preview(path, signal) {
  try {
    if (path === null) throw new Fault(0, "", NO_ADDRESS);
    return { type: "previewed", preview: /** @type {Preview} */ (await get(path, signal)) };
  } catch (error) {
    if (signal.aborted) throw error;
    return { type: "unavailable", fault: asFault(error) };
  }
}

/**
 * @param {Action} action
 * @param {ReturnType<typeof parameters>} chosen
 * @param {Confirmation} state
 * @returns {Promise<import("./confirmation.js").Event>}
 */
async function carriedOut(action, chosen, state) {
  try {
    const { text } = /** @type {{ text: string }} */ (await post(actionPath(action) ?? "", body(action, chosen, state)));
    return { type: "succeeded", text };
  } catch (error) {
    return { type: "refused", fault: asFault(error) };
  } finally {
    refresh(); // also after a refusal, because something changed
  }
}

/**
 * What the user can choose for an action.
 *
 * @param {{ action: Action, choices: Choices, choose: (changed: Partial<Choices>) => void, disabled: boolean }} properties
 */
function ChoiceFields({ action, choices, choose, disabled }) {
  if (action.kind === "pause") {
    return h(
      Field.Root,
      null,
      h(Field.Label, null, "Pause it for"),
      h(
        NativeSelect.Root,
        { size: "sm", disabled },
        h(
          NativeSelect.Field,
          {
            value: choices.minutes,
            onChange: (/** @type {{ target: HTMLSelectElement }} */ event) => choose({ minutes: Number(event.target.value) }),
          },
          PAUSES.map(([minutes, text]) => h("option", { key: minutes, value: minutes }, text)),
        ),
        h(NativeSelect.Indicator),
      ),
    );
  }
  if (action.kind === "reset") {
    const problem = objection(action, choices);
    return h(
      Field.Root,
      { invalid: problem !== "", disabled },
      h(Field.Label, null, "Deliver again from this sequence on"),
      h(Input, {
        size: "sm",
        inputMode: "numeric",
        value: choices.sequence,
        onChange: (/** @type {{ target: HTMLInputElement }} */ event) => choose({ sequence: event.target.value.trim() }),
      }),
      h(Field.HelperText, null, "Leave it empty to begin with the first message that is not acknowledged."),
      h(Field.ErrorText, null, problem),
    );
  }
  if (action.kind === "replay" || action.kind === "discard") {
    return h(
      HStack,
      { as: "label", gap: 2 },
      h("input", {
        type: "checkbox",
        checked: choices.unconfirmed,
        disabled,
        onChange: (/** @type {{ target: HTMLInputElement }} */ event) => choose({ unconfirmed: event.target.checked }),
      }),
      h(Text, null, "Include dead letters that the ledger does not confirm"),
    );
  }
  return null;
}

/**
 * Why the previous request was refused. It gets the focus, because the button that was pressed is disabled by then.
 *
 * @param {{ state: Confirmation, ask: () => void }} properties
 */
function Note({ state, ask }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => (state.note === "" ? undefined : box.current?.focus()), [state.note]);
  if (state.note === "") return null;
  return h(
    Alert.Root,
    { status: "warning", ref: box, tabIndex: -1, role: "alert", alignItems: "flex-start" },
    h(Alert.Indicator, { "aria-hidden": true }),
    h(
      Alert.Content,
      { overflowWrap: "anywhere" },
      h(Alert.Description, null, h(Name, { text: withTimes(state.note), limit: 1_000 })),
      state.expired ? h(Alert.Description, null, h(LoginLink)) : null,
      state.phase === "failed" && !state.expired ? h(Button, { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", onClick: ask }, "Try again") : null,
    ),
  );
}

/**
 * What will happen, what is happening, or what has happened.
 *
 * @param {{ action: Action, state: Confirmation }} properties
 */
function Outlook({ action, state: { phase, text, silence, alive } }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => (phase === "done" ? box.current?.focus() : undefined), [phase]);
  const listens = (action.kind === "release" || action.kind === "release_all") && silence > 0 && !alive;
  const said = h(Name, { text: withTimes(text), limit: 2_000 });
  return h(
    Box,
    { "aria-live": "polite", ref: box, tabIndex: -1, overflowWrap: "anywhere", outline: "none" },
    phase === "asking" ? h(Waiting, { text: "Finding out what will happen…" }) : null,
    phase === "sending" ? h(Waiting, { text: listens ? `Listening for holders for up to ${duration(silence)}…` : "Working…" }) : null,
    phase === "ready" || phase === "sending" ? h(Text, null, said) : null,
    phase === "done"
      ? h(Alert.Root, { status: "success", size: "sm" }, h(Alert.Indicator, { "aria-hidden": true }), h(Alert.Title, null, said))
      : null,
  );
}

/** @param {{ text: string }} properties */
function Waiting({ text }) {
  return h(HStack, { gap: 2, mb: 2 }, h(Spinner, { size: "sm" }), h(Text, null, text));
}

/**
 * The field in which a dangerous action is confirmed.
 *
 * @param {{
 *   action: Action, state: Confirmation, dispatch: (event: import("./confirmation.js").Event) => void, send: () => void,
 * }} properties
 */
function TypedWord({ action, state, dispatch, send }) {
  if (!state.dangerous || state.phase !== "ready") return null;
  return h(
    "form",
    {
      onSubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        send();
      },
    },
    h(
      Field.Root,
      null,
      h(Field.Label, { display: "inline" }, "Type ", h(Box, { as: "strong", fontFamily: "mono" }, word(action)), " to confirm"),
      h(Input, {
        size: "sm",
        autoComplete: "off",
        spellCheck: false,
        value: state.typed,
        onChange: (/** @type {{ target: HTMLInputElement }} */ event) => dispatch({ type: "typed", text: event.target.value }),
      }),
    ),
  );
}
