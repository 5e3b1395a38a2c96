import { type QueueList, type QueueState } from '@holdfast/contracts'
import type { Command } from 'commander'
import { age, table } from '../answer.ts'
import { pathOf } from '../api.ts'
import { addCommand, addGroup, type Context, type Host } from '../command.ts'
import type { GlobalOptions } from '../session.ts'

interface QueueOptions {
  readonly allProjects?: boolean
}

export function addQueues(program: Command, host: Host): void {
  const group = addGroup<QueueOptions>(program, host, {
    name: 'queues',
    summary: 'Show queues and what waits in them; pause and resume them',
    examples: ['queues', 'queues --all-projects', 'queues pause mail', 'queues resume mail'],
    configure: (command) => command.option('--all-projects', 'of every project; asks the management API'),
    run: list,
  })
  addCommand<QueueOptions>(group, host, {
    name: 'list',
    summary: 'Show queues, the same as `queues`',
    examples: ['queues list'],
    run: list,
  })
  addCommand(group, host, {
    name: 'pause',
    summary: 'Claim nothing more from a queue; what executes goes on to the end of its step',
    examples: ['queues pause mail'],
    configure: (command) => command.argument('<name>', 'the queue, for all projects'),
    run: (context, options, [name]) => set(context, options, String(name), 'pause'),
  })
  addCommand(group, host, {
    name: 'resume',
    summary: 'Claim from a queue again',
    examples: ['queues resume mail'],
    configure: (command) => command.argument('<name>', 'the queue, for all projects'),
    run: (context, options, [name]) => set(context, options, String(name), 'resume'),
  })
}

async function list({ session }: Context, options: QueueOptions & GlobalOptions) {
  const queues =
    options.allProjects === true
      ? (await session.manage(options).get<QueueList>('/manage/v1/queues')).queues
      : await session.client(options).queues()
  return { document: { queues }, text: queueTable(queues) }
}

const WAITING = ['runnable', 'executing', 'scheduled', 'throttled', 'awaiting_signal', 'awaiting_children'] as const

const queueTable = (queues: QueueList['queues']): string =>
  table(
    ['queue', '', ...WAITING, 'oldest', 'unclaimable'],
    queues.map((queue) => [
      queue.queue,
      queue.paused ? 'paused' : '',
      ...WAITING.map((status) => queue.depth[status] ?? 0),
      age(queue.oldest_runnable_ms),
      queue.unclaimable,
    ]),
    'nothing waits in any queue',
  )

async function set({ session }: Context, options: GlobalOptions, name: string, verb: 'pause' | 'resume') {
  const path = verb === 'pause' ? pathOf`/manage/v1/queues/${name}/pause` : pathOf`/manage/v1/queues/${name}/resume`
  const state = await session.manage(options).post<QueueState>(path)
  return { document: state, text: `${state.queue} is ${state.paused ? 'paused' : 'open'}` }
}
