import { describe, expect, test } from 'vitest'
import { parseStrictJson } from '../src/index.ts'

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)

describe('a body is one strict JSON object', () => {
  test.each([
    ['{}', {}],
    ['{"a":{"a":1},"b":[{"a":1},{"a":2}]}', { a: { a: 1 }, b: [{ a: 1 }, { a: 2 }] }],
    [String.raw`{"a":"\\u0000 and \ud83d\ude00"}`, { a: String.raw`\u0000 and ` + '\ud83d\ude00' }],
    ['{"text":"{\\"a\\":1,\\"a\\":2}"}', { text: '{"a":1,"a":2}' }],
  ])('%s is taken', (text, value) => {
    expect(parseStrictJson(bytes(text))).toEqual(value)
  })

  test.each([
    ['', /empty/],
    ['   ', /empty/],
    ['{', /not JSON/],
    ['[1]', /one JSON object/],
    ['null', /one JSON object/],
    ['"a"', /one JSON object/],
    ['{"a":1,"a":2}', /key "a" appears twice.*character 7/],
    [String.raw`{"a":1,"\u0061":2}`, /key "a" appears twice/],
    ['{"x":[{"a":1,"b":{},"a":2}]}', /key "a" appears twice/],
    [String.raw`{"a":"\u0000"}`, /NUL/],
    [String.raw`{"\u0000":1}`, /NUL/],
    [String.raw`{"a":"\ud83d"}`, /unpaired surrogate/],
    [`{"a":${'['.repeat(128)}${']'.repeat(128)}}`, /deeper than 128/],
  ])('%s is refused, with the reason', (text, reason) => {
    expect(() => parseStrictJson(bytes(text))).toThrow(reason)
  })

  test('the deepest that is taken has 128 levels', () => {
    expect(parseStrictJson(bytes(`{"a":${'['.repeat(127)}${']'.repeat(127)}}`))).toHaveProperty('a')
  })
  test('bytes that are no UTF-8 are refused', () => {
    expect(() => parseStrictJson(new Uint8Array([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]))).toThrow(/UTF-8/)
  })
})
