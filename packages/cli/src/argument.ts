// What an argument must look like; each parser says what it expects, and commander says of which option.
import { readFileSync } from 'node:fs'
import { type Duration, durationMs, InstanceIdSchema, type JsonValue } from '@holdfast/contracts'
import { InvalidArgumentError } from 'commander'
import { UsageError } from './exit-code.ts'

export const wholeNumber =
  (least: number, most: number) =>
  (text: string): number => {
    const value = Number(text)
    if (!/^-?\d+$/.test(text) || value < least || value > most)
      throw new InvalidArgumentError(`Expected a whole number from ${least} to ${most}.`)
    return value
  }

export function positiveNumber(text: string): number {
  const value = Number(text)
  if (text.trim() === '' || !Number.isFinite(value) || value < 0) throw new InvalidArgumentError('Expected a number of at least 0.')
  return value
}

/** `90 s`, `3days`, or milliseconds. */
export function duration(text: string): number {
  try {
    return durationMs(/^\d+$/.test(text) ? Number(text) : (text as Duration))
  } catch {
    throw new InvalidArgumentError(`Expected a time like 1500 (ms), '90 s', '5 min', '3 days'.`)
  }
}

export function instanceId(text: string): string {
  if (!InstanceIdSchema.safeParse(text).success)
    throw new InvalidArgumentError('Expected an id of an instance, a decimal number such as 42.')
  return text
}

/** For `<id...>`: commander hands each value with those before it. */
export const instanceIds = (text: string, before: readonly string[] = []): readonly string[] => [...before, instanceId(text)]

export interface RateLimit {
  readonly name: string
  readonly partition?: string
}

/** `name` or `name:partition`. */
export function rateLimit(text: string): RateLimit {
  const [, name, partition] = /^([^:]+)(?::(.+))?$/s.exec(text) ?? []
  if (name === undefined) throw new InvalidArgumentError(`Expected name or name:partition, as in 'mail' or 'mail:tenant-7'.`)
  return { name, ...(partition === undefined ? {} : { partition }) }
}

/** JSON as it stands, `@file`, or `-` for the standard input. */
export function readJson(text: string, option: string): JsonValue {
  const [source, from] = sourceOf(text, option)
  try {
    return JSON.parse(source, refuseRounded) as JsonValue
  } catch (error) {
    throw new UsageError(
      `${option}: ${from} is not JSON that can be sent: ${(error as Error).message}. Expected JSON, @file or - for the standard input, as in ${option} '{"order": 7}'`,
    )
  }
}

function sourceOf(text: string, option: string): readonly [source: string, from: string] {
  try {
    if (text === '-') return [readFileSync(0, 'utf8'), 'the standard input']
    if (text.startsWith('@')) return [readFileSync(text.slice(1), 'utf8'), text.slice(1)]
  } catch (error) {
    throw new UsageError(`${option}: ${text === '-' ? 'the standard input' : text.slice(1)} cannot be read: ${(error as Error).message}`)
  }
  return [text, 'its value']
}

/** 1e400 would become null, and 9007199254740993 another number. */
function refuseRounded(_key: string, value: unknown): unknown {
  if (typeof value !== 'number') return value
  if (!Number.isFinite(value)) throw new SyntaxError('a number is too large')
  if (Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < 1e21)
    throw new SyntaxError(`the number ${value} is beyond 2^53, where digits are lost; send it as a text`)
  return value
}
