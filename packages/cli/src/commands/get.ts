import { type Instance, InstanceFailedError } from '@holdfast/client'
import { isTerminal } from '@holdfast/contracts'
import type { HoldfastClient } from '@holdfast/client'
import type { Command } from 'commander'
import { duration, instanceId } from '../argument.ts'
import { addCommand, type Host } from '../command.ts'
import { ExitCodes } from '../exit-code.ts'
import { historyTable, instanceText } from './instance-text.ts'

interface GetOptions {
  readonly history?: boolean
  readonly wait?: boolean
  readonly timeout?: number
}

export function addGet(program: Command, host: Host): void {
  addCommand<GetOptions>(program, host, {
    name: 'get',
    summary: 'Show an instance, what it has done, or how it ends',
    more: 'With --wait it ends with 1 if the instance failed, was cancelled, or has not ended in time.',
    examples: ['get 42', 'get 42 --history', `get 42 --wait --timeout '30 s' --json`],
    configure: (command) =>
      command
        .argument('<id>', 'the instance', instanceId)
        .option('--history', 'with every transition, oldest first')
        .option('--wait', 'wait until it has ended')
        .option('--timeout <time>', 'how long to wait; default 5 min', duration),
    run: async ({ session }, options, [given]) => {
      const id = String(given)
      const client = session.client(options)
      const instance = options.wait === true ? await ended(client, id, options.timeout) : await client.get(id)
      const transitions = options.history === true ? await client.history(id) : undefined
      return {
        document: transitions === undefined ? instance : { ...instance, transitions },
        text: instanceText(instance) + (transitions === undefined ? '' : `\n\n${historyTable(transitions)}`),
        exitCode: options.wait === true && isTerminal(instance.status) && instance.status !== 'done' ? ExitCodes.refused : ExitCodes.ok,
      }
    },
  })
}

async function ended(client: HoldfastClient, id: string, timeoutMs: number | undefined): Promise<Instance> {
  try {
    await client.waitFor(id, timeoutMs === undefined ? {} : { timeoutMs })
  } catch (error) {
    if (error instanceof InstanceFailedError) return error.instance
    throw error
  }
  return client.get(id)
}
