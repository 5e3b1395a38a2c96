import { Cron } from 'croner'

/** A cron text or time zone that means nothing; the message names the field at fault. */
export class InvalidCronError extends Error {
  override readonly name = 'InvalidCronError'
}

const OPTIONS = {
  paused: true,
  mode: '5-or-6-parts',
  // A text without `*` and `/` in its seconds, minutes and hours means times of the day: one that the clock jumps over comes when it has jumped, one that it shows twice
  // comes once, as in Vixie cron. Any other text means a rhythm, and follows the clock.
  fixedTimeRule: 'no-wildcard',
} as const

interface Field {
  readonly name: string
  readonly takes: string
}
const SECOND: Field = { name: 'second', takes: '0 to 59' }
const FIELDS: readonly Field[] = [
  { name: 'minute', takes: '0 to 59' },
  { name: 'hour', takes: '0 to 23' },
  { name: 'day-of-month', takes: '1 to 31, L for the last, 15W for the nearest working day' },
  { name: 'month', takes: '1 to 12 or JAN to DEC' },
  { name: 'day-of-week', takes: '0 to 7 (0 and 7 are Sunday) or SUN to SAT, 5#2 for the second Friday, 5L for the last' },
]
const NICKNAMES = ['@hourly', '@daily', '@midnight', '@weekly', '@monthly', '@yearly', '@annually']

/**
 * The ticks of a cron text on the clock of a time zone. Instants are whole seconds. What comes next depends on the instant asked for and on nothing else, also where
 * that clock is set forward or back; each answer costs some 0.3 to 0.8 ms.
 */
export class CronClock {
  readonly #cron: Cron

  /** Throws {@link InvalidCronError}. */
  constructor(cron: string, timezone: string) {
    checkZone(timezone)
    const text = cron.trim()
    const parts = text.split(/\s+/)
    if (text.startsWith('@') ? !NICKNAMES.includes(text.toLowerCase()) : parts.length !== 5 && parts.length !== 6)
      throw new InvalidCronError(
        `cron: expected 5 fields (${FIELDS.map(({ name }) => name).join(' ')}), 6 with seconds in front, or one of ${NICKNAMES.join(' ')}; ${JSON.stringify(cron)} is none of these`,
      )
    try {
      this.#cron = new Cron(text, { ...OPTIONS, timezone })
    } catch (error) {
      throw new InvalidCronError(faultOf(parts, error), { cause: error })
    }
  }

  /** The first tick after `instant`; undefined when there is none, as for 30 February. */
  after(instant: Date): Date | undefined {
    return this.#cron.nextRun(instant) ?? undefined
  }

  /** The last tick before `instant`. */
  before(instant: Date): Date | undefined {
    return this.#cron.previousRuns(1, instant)[0]
  }
}

function checkZone(timezone: string): void {
  try {
    // Offsets like +02:00 are taken by some versions of Node and not by others.
    if (/^[A-Za-z]/.test(timezone)) return void new Intl.DateTimeFormat('en', { timeZone: timezone })
  } catch {
    // Told below.
  }
  throw new InvalidCronError(
    `timezone: ${JSON.stringify(timezone.slice(0, 100))} is not a time zone; give an IANA name like Europe/Berlin, or UTC`,
  )
}

/** Tries each field alone, because the library's messages do not always name the one at fault, or what it may hold. */
function faultOf(parts: readonly string[], error: unknown): string {
  const fields = parts.length === 6 ? [SECOND, ...FIELDS] : FIELDS
  for (const [index, { name, takes }] of fields.entries()) {
    try {
      new Cron(parts.map((part, place) => (place === index ? part : '*')).join(' '), OPTIONS)
    } catch {
      return `cron: the ${name} field cannot be ${JSON.stringify(parts[index])}; it takes ${takes}, *, ranges (1-5), steps (*/15, 8-18/2) and lists of these (1,15)`
    }
  }
  return `cron: ${error instanceof Error ? error.message : String(error)}`
}
