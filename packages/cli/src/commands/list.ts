import { type Instance, type InstanceId, Limits } from '@holdfast/contracts'
import type { Command } from 'commander'
import { instanceId, wholeNumber } from '../argument.ts'
import { addCommand, type Host } from '../command.ts'
import { addFilters, type FilterOptions } from './filter.ts'
import { instanceTable } from './instance-text.ts'

interface ListOptions extends FilterOptions {
  readonly limit?: number
  readonly after?: string
}
const DEFAULT_LIMIT = 50

export function addList(program: Command, host: Host): void {
  addCommand<ListOptions>(program, host, {
    name: 'list',
    summary: 'List instances, newest first',
    examples: ['list --status failed', 'list --machine checkout --limit 200', 'list --limit 500 --after 9000 --json'],
    configure: (command) =>
      addFilters(command)
        .option('--limit <n>', `at most so many; default ${DEFAULT_LIMIT}`, wholeNumber(1, 1_000_000))
        .option('--after <id>', 'go on after this one: the `next` of the page before', instanceId),
    run: async ({ session }, options) => {
      const client = session.client(options)
      const limit = options.limit ?? DEFAULT_LIMIT
      const { machine, status, queue, correlationKey, parent } = options
      const filter = {
        ...(machine === undefined ? {} : { machine }),
        ...(status === undefined ? {} : { status }),
        ...(queue === undefined ? {} : { queue }),
        ...(correlationKey === undefined ? {} : { correlationKey }),
        ...(parent === undefined ? {} : { parentId: parent as InstanceId }),
      }
      const instances: Instance[] = []
      let next: string | undefined = options.after
      do {
        const page = await client.page({ ...filter, pageSize: Math.min(limit - instances.length, Limits.listLimit) }, next)
        instances.push(...page.instances)
        next = page.next
      } while (next !== undefined && instances.length < limit)
      return {
        document: { instances, ...(next === undefined ? {} : { next }) },
        text: instanceTable(instances) + (next === undefined ? '' : `\n\nthere may be more: --after ${next}`),
      }
    },
  })
}
