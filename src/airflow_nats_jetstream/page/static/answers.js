// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Answers of the API that are requested again and again while the page is visible. */

import { asFault, get } from "./api.js";
import { INTERVAL, pause } from "./fault.js";

/** @import { Fault } from "./fault.js" */

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

/** The requests that are being repeated, each as a function that asks at once.
 * @type {Set<() => Promise<void>>} */
const active = new Set();

/** Repeat all requests of the page at once, because an action has changed something or the user wants to know. */
export function refresh() {
  for (const ask of active) void ask();
}

/**
 * The answer to a request that is repeated while the page is visible. A hidden page requests nothing.
 *
 * @template T
 * @param {string | null} path below the API's address; null requests nothing
 * @param {number} [interval] seconds between two requests
 * @returns {Answer<T>}
 */
export function useAnswer(path, interval = INTERVAL) {
  const [, show] = useState(0);
  useEffect(
    () => (path === null ? undefined : repeated(path, interval, () => show((turn) => turn + 1))),
    [path, interval],
  );
  return (path !== null && newest.get(path)) || NOTHING;
}

/**
 * Request a path now and then at intervals, until the returned function is called.
 *
 * @param {string} path
 * @param {number} interval
 * @param {() => void} changed called after each answer and each failure
 */
function repeated(path, interval, changed) {
  const ended = new AbortController();
  let failures = 0;
  let waiting = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @returns {Promise<number>} seconds until the next request; 0 if none follows */
  const once = async () => {
    try {
      remember(path, { data: await get(path, ended.signal), at: Date.now(), fault: null, retry: 0 });
      failures = 0;
      return pause(0, interval);
    } catch (error) {
      const fault = asFault(error);
      failures += 1;
      const retry = fault.expired ? 0 : pause(failures, interval);
      if (!ended.signal.aborted) remember(path, { ...(newest.get(path) ?? NOTHING), fault, retry });
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
    if (retry > 0) timer = setTimeout(ask, retry * 1_000);
  };

  document.addEventListener("visibilitychange", ask, { signal: ended.signal });
  active.add(ask);
  void ask();
  return () => {
    ended.abort();
    active.delete(ask);
    clearTimeout(timer);
  };
}
