import type { Command } from 'commander'
import { instanceId, readJson } from '../argument.ts'
import { addCommand, type Host } from '../command.ts'
import { UsageError } from '../exit-code.ts'

interface SignalOptions {
  readonly key?: string
  readonly payload?: string
  readonly dedupKey?: string
}

export function addSignal(program: Command, host: Host): void {
  addCommand<SignalOptions>(program, host, {
    name: 'signal',
    summary: 'Put a signal into the inbox of a live instance',
    examples: [
      `signal 42 payment_confirmed --payload '{"amount":1200}'`,
      `signal --key order-7 payment_confirmed --payload '{"amount":1200}' --dedup-key payment-1`,
    ],
    configure: (command) =>
      command
        .usage('<id> <name> [options] | --key <key> <name> [options]')
        .argument('<id>', 'the instance; left out with --key')
        .argument('[name]', 'name of the signal')
        .option('--key <key>', 'address the live instance with this correlation key')
        .option('--payload <json>', 'JSON, @file, or - for the standard input; default {}')
        .option('--dedup-key <key>', 'a second delivery with the same key to the same instance does nothing'),
    run: async ({ session }, options, [first, second]) => {
      const { target, name } = addressed(options.key, String(first), second === undefined ? undefined : String(second))
      const payload = options.payload === undefined ? undefined : readJson(options.payload, '--payload')
      const { duplicate } = await session
        .client(options)
        .signal(target, name, payload, options.dedupKey === undefined ? {} : { dedupKey: options.dedupKey })
      return { document: { delivered: true, duplicate }, text: duplicate ? 'delivered before: nothing was changed' : 'delivered' }
    },
  })
}

function addressed(key: string | undefined, first: string, second: string | undefined) {
  if (key !== undefined) {
    if (second !== undefined) throw new UsageError(`give an id or --key, not both: holdfast signal --key ${key} ${second}`)
    return { target: { correlationKey: key }, name: first }
  }
  if (second === undefined)
    throw new UsageError(`say to whom and what: holdfast signal 42 ${first}, or holdfast signal --key order-7 ${first}`)
  return { target: { id: instanceId(first) }, name: second }
}
