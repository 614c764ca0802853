// @ts-check
// SPDX-License-Identifier: Apache-2.0
/**
 * A table with a caption and headers. On a narrow screen each row becomes a block, with the title of its column before
 * each cell. The roles are explicit, because browsers forget them when the layout of a table changes.
 */

import { h, LINE, UNSEEN } from "./elements.js";

const { Box, Table: Chakra, Text } = globalThis.ChakraUI;
const { Fragment } = globalThis.React;

/**
 * - numeric: aligned to the right on a wide screen.
 * - width: of the column on a wide screen.
 * - silent: the title is only for screen readers.
 * @template Row
 * @typedef {{ title: string, cell: (row: Row) => Child, numeric?: boolean, width?: string, silent?: boolean }} Column
 */

/**
 * @param {{
 *   caption: string, columns: ReadonlyArray<Column<any>>, rows: ReadonlyArray<unknown>,
 *   keyOf: (row: any) => string | number, below?: (row: any) => Child, empty: string, even?: boolean,
 * }} properties `below` is displayed across the whole width below a row; null displays nothing. `empty` replaces the
 *   table when it has no rows. `even` makes columns as wide as they say, so that those of several tables are aligned.
 */
export function Table({ caption, columns, rows, keyOf, below, empty, even = false }) {
  if (rows.length === 0) return h(Text, { color: "fg.muted", py: 4 }, empty);
  return h(
    Chakra.ScrollArea,
    null,
    h(
      Chakra.Root,
      { role: "table", display: { base: "block", md: "table" }, tableLayout: { xl: even ? "fixed" : "auto" } },
      h(Chakra.Caption, { css: UNSEEN }, caption),
      h(Head, { columns }),
      h(
        Chakra.Body,
        { role: "rowgroup", display: { base: "block", md: "table-row-group" } },
        rows.map((row) =>
          h(Fragment, { key: keyOf(row) }, h(Row, { columns, row }), h(Below, { columns: columns.length }, below?.(row) ?? null)),
        ),
      ),
    ),
  );
}

/** @param {{ columns: ReadonlyArray<Column<any>> }} properties */
function Head({ columns }) {
  return h(
    Chakra.Header,
    { role: "rowgroup", css: { "@media (max-width: 47.99rem)": UNSEEN } },
    h(
      Chakra.Row,
      { role: "row" },
      columns.map(({ title, numeric, width, silent }) =>
        h(
          Chakra.ColumnHeader,
          { key: title, role: "columnheader", scope: "col", borderColor: LINE, textAlign: numeric ? "end" : "start", width, whiteSpace: "nowrap" },
          silent ? h(Box, { as: "span", css: UNSEEN }, title) : title,
        ),
      ),
    ),
  );
}

/** @param {{ columns: ReadonlyArray<Column<any>>, row: unknown }} properties */
function Row({ columns, row }) {
  return h(
    Chakra.Row,
    {
      role: "row",
      display: { base: "block", md: "table-row" },
      borderBottomWidth: { base: "1px", md: "0" },
      borderColor: LINE,
      py: { base: 2, md: 0 },
    },
    columns.map(({ title, cell, numeric }, index) =>
      h(
        Chakra.Cell,
        {
          key: title,
          as: index === 0 ? "th" : "td",
          ...(index === 0 ? { role: "rowheader", scope: "row", fontWeight: "normal" } : { role: "cell" }),
          "data-title": title,
          display: { base: "flex", md: "table-cell" },
          gap: 3,
          borderBottomWidth: { base: "0", md: "1px" },
          borderColor: LINE,
          py: { base: 0.5, md: 2 },
          textAlign: { base: "start", md: numeric ? "end" : "start" },
          whiteSpace: "normal",
          _before: {
            content: { base: "attr(data-title)", md: "none" }, color: "fg.muted", flex: "0 0 7.5rem", overflowWrap: "anywhere",
          },
        },
        h(Box, { minWidth: 0 }, cell(row)),
      ),
    ),
  );
}

/** @param {{ columns: number, children?: Child }} properties */
function Below({ columns, children }) {
  if (children === null) return null;
  return h(
    Chakra.Row,
    { role: "row", display: { base: "block", md: "table-row" } },
    h(Chakra.Cell, { role: "cell", colSpan: columns, display: { base: "block", md: "table-cell" }, pb: 3, pt: 1, whiteSpace: "normal" }, children),
  );
}
