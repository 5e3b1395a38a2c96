/**
 * What a client needs of a machine or job: its name and, for the compiler only, its types. What `machine()` and `job()` of @holdfast/engine answer
 * fits; so does `{ name: 'checkout' }` where the definition is not at hand.
 */
export interface MachineRef<State = unknown, Result = unknown, Signals = unknown> {
  readonly name: string
  readonly version?: number
  readonly $types?: { readonly state: State; readonly result: Result; readonly signals: Signals }
}

export type StateOf<Machine> = Machine extends { readonly $types?: { readonly state: infer State } } ? State : unknown
export type ResultOf<Machine> = Machine extends { readonly $types?: { readonly result: infer Result } } ? Result : unknown
export type SignalsOf<Machine> = Machine extends { readonly $types?: { readonly signals: infer Signals } }
  ? Signals
  : Record<string, unknown>
