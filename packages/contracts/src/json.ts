export type JsonValue = null | boolean | number | string | readonly JsonValue[] | { readonly [key: string]: JsonValue }

/** Largest state, result, payload or error, in UTF-8 bytes of JSON text. Half of the default request body, so that one always fits. */
export const MAX_JSON_BYTES = 524_288
/** Deepest nesting that is stored; PostgreSQL's parser gives up somewhere past 6,000, depending on its stack. */
export const MAX_JSON_DEPTH = 128

/** A value that PostgreSQL could not store as jsonb, or that we refuse to. Terminal: trying again cannot help. */
export class NotStorableError extends Error {
  override readonly name = 'NotStorableError'
  readonly reason: 'not_json' | 'nul' | 'surrogate' | 'too_large' | 'too_deep'
  constructor(reason: NotStorableError['reason'], message: string) {
    super(message)
    this.reason = reason
  }
}

// JSON.stringify writes NUL as \u0000 and a lone surrogate as \udXXX. An even number of backslashes before it means that
// the text itself contains a backslash and the letters u0000, which is harmless.
const REFUSED = /(?<!\\)(?:\\\\)*\\u(0000|d[89ab][0-9a-f]{2}|d[c-f][0-9a-f]{2})/

/**
 * The JSON text of `value`, certain to be accepted by a cast to jsonb.
 * `what` names the value in the error message, as in "the state of step ship".
 * Throws {@link NotStorableError}: undefined, functions and BigInt at the top, cycles, NUL characters, unpaired surrogates,
 * more than {@link MAX_JSON_BYTES} or nested deeper than {@link MAX_JSON_DEPTH}.
 */
export function storableJson(value: unknown, what: string): string {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw new NotStorableError('not_json', `${what} cannot be written as JSON: ${error instanceof Error ? error.message : String(error)}`)
  }
  if (text === undefined) throw new NotStorableError('not_json', `${what} is ${typeof value}, which has no JSON form; return null instead`)
  const bytes = text.length > MAX_JSON_BYTES / 3 ? byteLength(text) : text.length
  if (bytes > MAX_JSON_BYTES) {
    throw new NotStorableError(
      'too_large',
      `${what} is ${bytes} bytes of JSON; at most ${MAX_JSON_BYTES} are stored. Keep large data elsewhere and store its address`,
    )
  }
  const refused = text.includes('\\u') ? REFUSED.exec(text)?.[1] : undefined
  if (refused === '0000') throw new NotStorableError('nul', `${what} contains a NUL character, which PostgreSQL cannot store in JSON`)
  if (refused !== undefined)
    throw new NotStorableError('surrogate', `${what} contains an unpaired surrogate (\\u${refused}), which is not valid Unicode`)
  if (text.length > 2 * MAX_JSON_DEPTH && depthOf(text) > MAX_JSON_DEPTH) {
    throw new NotStorableError('too_deep', `${what} is nested deeper than ${MAX_JSON_DEPTH} levels`)
  }
  return text
}

function byteLength(text: string): number {
  let bytes = 0
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index)
    // A surrogate pair is four bytes: two for each half.
    bytes += unit < 0x80 ? 1 : unit < 0x800 || (unit >= 0xd800 && unit < 0xe000) ? 2 : 3
  }
  return bytes
}

function depthOf(text: string): number {
  let depth = 0
  let deepest = 0
  let quoted = false
  for (let index = 0; index < text.length; index += 1) {
    const unit = text[index]
    if (quoted) {
      if (unit === '\\') index += 1
      else if (unit === '"') quoted = false
    } else if (unit === '"') quoted = true
    else if (unit === '{' || unit === '[') deepest = Math.max(deepest, (depth += 1))
    else if (unit === '}' || unit === ']') depth -= 1
  }
  return deepest
}
