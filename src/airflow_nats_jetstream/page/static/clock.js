// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Times as Airflow's own pages show them: in the time zone that the user has chosen in Airflow. */

/** The key under which Airflow's UI keeps the user's time zone. */
const CHOSEN = "timezone";

/** The format of a time zone, by what the browser has stored for it. @type {Map<string | null, Intl.DateTimeFormat>} */
const formats = new Map();

/** @param {string | undefined} timeZone */
function formatIn(timeZone) {
  return new Intl.DateTimeFormat("en-GB", {
    ...(timeZone === undefined ? {} : { timeZone }), hourCycle: "h23", year: "numeric", month: "2-digit",
    day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
}

/** @param {string | null} stored */
function parsed(stored) {
  try {
    return formatIn(stored === null ? undefined : JSON.parse(stored));
  } catch {
    return formatIn(undefined);
  }
}

function format() {
  const stored = localStorage.getItem(CHOSEN);
  const made = formats.get(stored) ?? parsed(stored);
  formats.set(stored, made);
  return made;
}

/**
 * A time as "2026-11-22 10:47:37", or null unless it is one.
 *
 * @param {string | number | null | undefined} at RFC 3339, or milliseconds since 1970
 * @returns {string | null}
 */
export function dateAndTime(at) {
  const date = new Date(at ?? Number.NaN);
  if (Number.isNaN(date.getTime())) return null;
  const parts = Object.fromEntries(format().formatToParts(date).map(({ type, value }) => [type, value]));
  return `${parts["year"]}-${parts["month"]}-${parts["day"]} ${parts["hour"]}:${parts["minute"]}:${parts["second"]}`;
}

/** A time in UTC in a sentence of the API, which puts one of these words before it; and not in the name of a run, nor in
 * the reason of a dead letter, which says what a payload must contain. */
const TIMES = /(?<= (?:at|before|since|until) )\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;

/**
 * A sentence with its times as the rest of the page shows them.
 *
 * @param {string} text
 */
export function withTimes(text) {
  return text.replace(TIMES, (at) => dateAndTime(at) ?? at);
}

/**
 * The time of day of a time: "10:47:37", or null.
 *
 * @param {string | number | null | undefined} at
 */
export function timeOfDay(at) {
  return dateAndTime(at)?.slice(11) ?? null;
}
