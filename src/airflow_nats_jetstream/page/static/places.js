// @ts-check
// SPDX-License-Identifier: Apache-2.0
/**
 * Addresses: the API's paths, places on this page, tasks and Dags of Airflow, and web addresses. Every name in an
 * address is encoded, and a name from which no safe address can be built results in null: the page then shows plain text.
 */

/** @import { Task } from "./api.js" */

/** @typedef {"overview" | "claims" | "claim" | "letters"} View */
/** The page's query. Airflow mounts the page again whenever the path changes, so the page navigates by query only.
 * @typedef {{
 *   view: View, connection: string, stream: string, consumer: string, claim: string,
 *   held: string, dag: string, run: string, reason: string, offset: number, after: number,
 * }} Place */

/** @type {ReadonlyArray<View>} */
const VIEWS = ["overview", "claims", "claim", "letters"];

/** @type {Readonly<Place>} */
const NOWHERE = {
  view: "overview", connection: "", stream: "", consumer: "", claim: "", held: "", dag: "", run: "", reason: "", offset: 0, after: 0,
};

/**
 * A path of encoded names, or null if a name cannot be a segment of a path: it is empty, or it is "." or "..", which
 * browsers resolve even if they are encoded, or it contains half of a surrogate pair.
 *
 * @param {...string} names
 * @returns {string | null}
 */
export function path(...names) {
  if (names.some((name) => name === "" || name === "." || name === ".." || !name.isWellFormed())) return null;
  return names.map(encodeURIComponent).join("/");
}

/**
 * A query string with its question mark, without the empty values. A list becomes one parameter for each element.
 *
 * @param {Readonly<Record<string, string | number | boolean | ReadonlyArray<number> | null | undefined>>} parameters
 */
export function query(parameters) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((each) => each !== "" && each !== null && each !== undefined && each !== 0 && each !== false)
      .map((each) => `${name}=${encodeURIComponent(String(each).toWellFormed())}`),
  );
  return pairs.length > 0 ? `?${pairs.join("&")}` : "";
}

/**
 * The place that a query of this page names. Unknown values are replaced by defaults.
 *
 * @param {(name: string) => string | null} parameter
 * @returns {Place}
 */
export function placeOf(parameter) {
  const view = VIEWS.find((each) => each === parameter("view")) ?? "overview";
  /** @param {string} name */
  const text = (name) => parameter(name) ?? "";
  /** @param {string} name */
  const number = (name) => (/^\d{1,15}$/.test(text(name)) ? Number(text(name)) : 0);
  return {
    view,
    connection: text("connection"),
    stream: text("stream"),
    consumer: text("consumer"),
    claim: text("claim"),
    held: ["yes", "no"].includes(text("held")) ? text("held") : "",
    dag: text("dag"),
    run: text("run"),
    reason: text("reason"),
    offset: number("offset"),
    after: number("after"),
  };
}

/**
 * The query that leads to a place. What is not named has its default.
 *
 * @param {Partial<Place>} place
 */
export function queryOf(place) {
  return query({ ...NOWHERE, ...place });
}

/**
 * The page of a task instance below Airflow's base path, or null.
 *
 * @param {Task} task
 * @returns {string | null}
 */
export function taskPath(task) {
  const instance = path("dags", task.dag_id, "runs", task.run_id, "tasks", task.task_id);
  if (instance === null) return null;
  const mapped = task.map_index >= 0 ? `/mapped/${task.map_index}` : "";
  return `/${instance}${mapped}${query({ try_number: task.try_number })}`;
}

/**
 * The page of a Dag below Airflow's base path, or null.
 *
 * @param {string} dag
 * @returns {string | null}
 */
export function dagPath(dag) {
  const found = path("dags", dag);
  return found === null ? null : `/${found}`;
}

/**
 * A link to another site, or null unless it is a plain http or https address without a user name and without
 * characters that hide where it leads.
 *
 * @param {string} address
 * @returns {string | null}
 */
export function webAddress(address) {
  return /^https?:\/\/[a-z0-9.:[\]_-]+(?:[/?#][!-[\]^-~]*)?$/i.test(address) ? address : null;
}

/**
 * The login page of Airflow, which leads back to the address `here`.
 *
 * @param {string} base the address of Airflow
 * @param {string} here
 */
export function loginAddress(base, here) {
  return `${base.replace(/\/*$/, "/")}api/v2/auth/login${query({ next: here })}`;
}
