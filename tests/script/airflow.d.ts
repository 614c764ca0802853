// What Airflow's UI provides to the script of the JetStream page, as far as the script uses it.

type Child = string | number | boolean | null | undefined | ReactElement | readonly Child[];

interface ReactElement {
  readonly type: unknown;
  readonly props: unknown;
}

type Component<P> = (properties: P) => Child;
/** A component of Chakra UI or of the router. Their properties are not checked. */
type Foreign = Component<any>;
type Parts<Names extends string> = Readonly<Record<Names, Foreign>>;

interface Context<T> {
  Provider: Component<{ value: T; children?: Child }>;
}

interface React {
  Fragment: Foreign;
  createElement(type: string, properties?: object | null, ...children: Child[]): ReactElement;
  createElement<P extends object>(
    type: Component<P>,
    properties?: (Omit<P, "children"> & { key?: string | number }) | null,
    ...children: Child[]
  ): ReactElement;
  createContext<T>(value: T): Context<T>;
  useContext<T>(context: Context<T>): T;
  useEffect(effect: () => void | (() => void), dependencies: readonly unknown[]): void;
  useReducer<State, Event>(reducer: (state: State, event: Event) => State, first: State): [State, (event: Event) => void];
  useRef<T>(first: T): { current: T };
  useState<T>(first: T | (() => T)): [T, (next: T | ((previous: T) => T)) => void];
}

interface ReactRouterDOM {
  Link: Foreign;
  useLocation(): { pathname: string; search: string; state: unknown };
  useNavigate(): (to: { pathname: string; search: string }, how?: { replace: boolean; state: unknown }) => void | Promise<void>;
  useSearchParams(): [URLSearchParams, unknown];
}

interface ChakraUI {
  Alert: Parts<"Root" | "Indicator" | "Content" | "Title" | "Description">;
  Badge: Foreign;
  Box: Foreign;
  Button: Foreign;
  CloseButton: Foreign;
  DataList: Parts<"Root" | "Item" | "ItemLabel" | "ItemValue">;
  Dialog: Parts<"Root" | "Backdrop" | "Positioner" | "Content" | "Header" | "Title" | "Body" | "Footer" | "CloseTrigger">;
  Field: Parts<"Root" | "Label" | "HelperText" | "ErrorText">;
  Grid: Foreign;
  Heading: Foreign;
  HStack: Foreign;
  Input: Foreign;
  Link: Foreign;
  NativeSelect: Parts<"Root" | "Field" | "Indicator">;
  Portal: Foreign;
  Span: Foreign;
  Spinner: Foreign;
  Stack: Foreign;
  Table: Parts<"Root" | "ScrollArea" | "Caption" | "Header" | "Body" | "Row" | "ColumnHeader" | "Cell">;
  Text: Foreign;
  Timeline: Parts<"Root" | "Item" | "Connector" | "Separator" | "Indicator" | "Content" | "Title">;
}

declare var React: React;
declare var ReactRouterDOM: ReactRouterDOM;
declare var ChakraUI: ChakraUI;
