// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Why a request did not succeed, and when it is repeated. */

import { sentence } from "./text.js";

/** The status of a request that got no answer. */
const UNREACHABLE = 0;
/** The status of a request without a valid session. */
export const EXPIRED = 401;

/** Seconds between two requests while everything works. */
export const INTERVAL = 5;

/** Why nothing can be requested for a name such as "..". */
export const NO_ADDRESS = "This name cannot be part of an address. Use the command line instead.";
/** Seconds between two requests at most, however many have failed. */
const LONGEST = 60;

export class Fault extends Error {
  /**
   * @param {number} status of HTTP, or UNREACHABLE
   * @param {string} type the name of the error, by which a caller distinguishes answers of the same status
   * @param {string} message one sentence that says what happened, why, and what to do
   */
  constructor(status, type, message) {
    super(message);
    this.status = status;
    this.type = type;
  }

  /** The user has to log in again. */
  get expired() {
    return this.status === EXPIRED;
  }
}

/**
 * The fault that an answer reports.
 *
 * @param {number} status
 * @param {unknown} body the answer's JSON, or undefined if the answer is not JSON
 */
export function faultOf(status, body) {
  if (status === EXPIRED) return new Fault(EXPIRED, "Expired", "Your session has expired. Log in again.");
  const { error, message } = /** @type {{ error?: unknown, message?: unknown }} */ (body ?? {});
  if (typeof message === "string" && message !== "") {
    return new Fault(status, typeof error === "string" ? error : "", sentence(message));
  }
  const why =
    status === 403
      ? "You may not do this with the connection. Ask an administrator of Airflow."
      : `Airflow answered with status ${status} and without an explanation. Its api-server's log says more.`;
  return new Fault(status, "", why);
}

/** The fault of a request that got no answer. */
export function unreachable() {
  return new Fault(UNREACHABLE, "", "Airflow's api-server did not answer. Check your network, and whether it is running.");
}

/** The fault of an action that got no answer: it may have been carried out. */
export function unfinished() {
  const { status, type, message } = unreachable();
  return new Fault(status, type, `${message} The action may have been carried out nevertheless: look at the new state before you repeat it.`);
}

/**
 * Seconds until the next request: the interval, doubled with each failure, up to one minute.
 *
 * @param {number} failures in succession
 * @param {number} [interval]
 */
export function pause(failures, interval = INTERVAL) {
  return failures === 0 ? interval : Math.max(interval, Math.min(LONGEST, INTERVAL * 2 ** failures));
}

/**
 * Milliseconds of a pause, varied by up to a fifth. Pages that have waited for the same answer would otherwise keep
 * asking at the same time, and wait for each other.
 *
 * @param {number} seconds
 * @param {number} [random] from 0 to 1
 */
export function varied(seconds, random = Math.random()) {
  return seconds * (800 + 400 * random);
}
