// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Answers of the API that are requested again and again while the page is visible. */

import { asFault, get } from "./api.js";
import { Fault, INTERVAL, NO_ADDRESS, pause, varied } from "./fault.js";

const { useEffect, useState } = globalThis.React;

/**
 * - data: the newest answer, or undefined. It remains when later requests fail.
 * - at: when it arrived, in milliseconds since 1970.
 * - fault: why the last request failed, and `retry` the seconds until the next one (0: none follows).
 * @template T
 * @typedef {{ data: T | undefined, at: number, fault: Fault | null, retry: number }} Answer
 */

/** The newest answers by path. Airflow mounts the page anew during navigation, and the page shows these at once.
 * @type {Map<string, Answer<any>>} */
const newest = new Map();
const REMEMBERED = 50;

/** @type {Answer<any>} */
const NOTHING = { data: undefined, at: 0, fault: null, retry: 0 };
/** The answer where no request is possible. @type {Answer<any>} */
const IMPOSSIBLE = { ...NOTHING, fault: new Fault(0, "", NO_ADDRESS) };

/**
 * @param {string} path
 * @param {Answer<any>} answer
 */
function remember(path, answer) {
  newest.delete(path);
  newest.set(path, answer);
  for (const oldest of newest.keys()) {
    if (newest.size <= REMEMBERED) break;
    newest.delete(oldest);
  }
}

/** The requests that are being repeated: how each asks at once, and whether its last answer was a fault.
 * @type {Set<{ ask: () => Promise<void>, failing: () => boolean }>} */
const active = new Set();

/** Repeat all requests of the page at once, because an action has changed something or the user wants to know. */
export function refresh() {
  for (const { ask } of active) void ask();
}

/** Repeat the requests that have failed: one of them succeeds again, so the others need not wait any longer. */
function recover() {
  for (const { ask, failing } of active) if (failing()) void ask();
}

/**
 * The answer to a request that is repeated while the page is visible. A hidden page requests nothing.
 *
 * @template T
 * @param {string | null} path below the API's address; null if a name cannot be part of an address
 * @param {number | ((data: any) => number)} [interval] seconds between two requests; a function must stay the same
 * @returns {Answer<T>}
 */
export function useAnswer(path, interval = INTERVAL) {
  const [, show] = useState(0);
  useEffect(
    () => (path === null ? undefined : repeated(path, interval, () => show((turn) => turn + 1))),
    [path, interval],
  );
  return path === null ? IMPOSSIBLE : (newest.get(path) ?? NOTHING);
}

/**
 * Request a path now and then at intervals, until the returned function is called.
 *
 * @param {string} path
 * @param {number | ((data: any) => number)} interval
 * @param {() => void} changed called after each answer and each failure
 */
function repeated(path, interval, changed) {
  const ended = new AbortController();
  let failures = 0;
  let waiting = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {any} data */
  const every = (data) => (typeof interval === "number" ? interval : data === undefined ? INTERVAL : interval(data));

  /** @returns {Promise<number>} seconds until the next request; 0 if none follows */
  const once = async () => {
    try {
      const data = await get(path, ended.signal);
      remember(path, { data, at: Date.now(), fault: null, retry: 0 });
      const recovered = failures > 0;
      failures = 0;
      if (recovered) recover();
      return pause(0, every(data));
    } catch (error) {
      const fault = asFault(error);
      failures += 1;
      const before = newest.get(path) ?? NOTHING;
      const retry = fault.expired ? 0 : pause(failures, every(before.data));
      if (!ended.signal.aborted) remember(path, { ...before, fault, retry });
      return retry;
    }
  };
  const ask = async () => {
    if (document.hidden || waiting) return;
    clearTimeout(timer);
    waiting = true;
    const retry = await once();
    waiting = false;
    if (ended.signal.aborted) return;
    changed();
    if (retry > 0) timer = setTimeout(ask, varied(retry));
  };

  document.addEventListener("visibilitychange", ask, { signal: ended.signal });
  const self = { ask, failing: () => failures > 0 };
  active.add(self);
  void ask();
  return () => {
    ended.abort();
    active.delete(self);
    clearTimeout(timer);
  };
}
