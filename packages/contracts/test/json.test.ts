import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { MAX_JSON_BYTES, MAX_JSON_DEPTH, NotStorableError, storableJson } from '../src/index.ts'

const reasonOf = (value: unknown): string => {
  try {
    storableJson(value, 'it')
    return 'stored'
  } catch (error) {
    if (!(error instanceof NotStorableError)) throw error
    expect(error.message).toMatch(/^it /)
    return error.reason
  }
}

describe('what is stored as JSON', () => {
  test.each([
    ['undefined', undefined, 'not_json'],
    ['a function', () => 1, 'not_json'],
    ['a bigint', 1n, 'not_json'],
    ['NUL', 'a\u0000', 'nul'],
    ['NUL in a key', { 'a\u0000': 1 }, 'nul'],
    ['a backslash and the letters u0000', String.raw`\u0000`, 'stored'],
    ['a backslash before a NUL', '\\\u0000', 'nul'],
    ['half a pair', '\ud83d', 'surrogate'],
    ['a pair', '\ud83d\ude00', 'stored'],
    ['the largest text', 'x'.repeat(MAX_JSON_BYTES - 2), 'stored'],
    ['one byte more', 'x'.repeat(MAX_JSON_BYTES - 1), 'too_large'],
    ['two-byte letters, counted in bytes', 'é'.repeat(MAX_JSON_BYTES / 2), 'too_large'],
    ['four-byte signs, counted in bytes', '😀'.repeat((MAX_JSON_BYTES - 2) / 4), 'stored'],
    ['the deepest', JSON.parse('['.repeat(MAX_JSON_DEPTH) + ']'.repeat(MAX_JSON_DEPTH)), 'stored'],
    ['one level more', JSON.parse(`${'['.repeat(MAX_JSON_DEPTH + 1)}${']'.repeat(MAX_JSON_DEPTH + 1)}`), 'too_deep'],
    ['brackets inside a text', '['.repeat(1_000), 'stored'],
  ])('%s', (_name, value, expected) => {
    expect(reasonOf(value)).toBe(expected)
  })

  test('any text is stored exactly when it has no NUL and is well formed', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        const fine = !text.includes('\u0000') && text.isWellFormed()
        return (reasonOf(text) === 'stored') === fine
      }),
      { numRuns: 500 },
    )
  })

  test('what is stored reads back as it was', () => {
    fc.assert(
      fc.property(
        fc.jsonValue(),
        (value) =>
          fc.pre(reasonOf(value) === 'stored') === undefined &&
          JSON.stringify(JSON.parse(storableJson(value, 'it'))) === JSON.stringify(value),
      ),
    )
  })
})
