import { Limits, type ProjectId, type QueueList, type QueueState } from '@holdfast/contracts'
import { HoldfastError } from '@holdfast/contracts'
import { getQueueDepths, type QueueDepthRow, setQueuePaused } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { Controller, Get, HttpCode, Inject, Param, Post, UseGuards } from '@nestjs/common'
import { Caller, OperatorGuard, type Principal, ProjectGuard } from './principal.ts'
import { DB } from './tokens.ts'

@Controller('v1/queues')
@UseGuards(ProjectGuard)
export class QueuesController {
  readonly #db: Db
  constructor(@Inject(DB) db: Db) {
    this.#db = db
  }

  @Get()
  list(@Caller() { projectId }: Principal): Promise<QueueList> {
    return queueList(this.#db, projectId)
  }
}

@Controller('manage/v1/queues')
@UseGuards(OperatorGuard)
export class ManageQueuesController {
  readonly #db: Db
  constructor(@Inject(DB) db: Db) {
    this.#db = db
  }

  @Get()
  list(): Promise<QueueList> {
    return queueList(this.#db, null)
  }

  @Post(':name/pause')
  @HttpCode(200)
  pause(@Param('name') name: string): Promise<QueueState> {
    return this.#set(name, true)
  }

  @Post(':name/resume')
  @HttpCode(200)
  resume(@Param('name') name: string): Promise<QueueState> {
    return this.#set(name, false)
  }

  async #set(queue: string, paused: boolean): Promise<QueueState> {
    if (queue.length > Limits.nameLength || queue.includes('\0'))
      throw new HoldfastError('invalid_queue', `a queue's name has 1 to ${Limits.nameLength} characters and no NUL among them`)
    const [row] = await setQueuePaused(this.#db, { queue, paused })
    return { queue, paused: row?.paused ?? paused }
  }
}

async function queueList(db: Db, projectId: ProjectId | null): Promise<QueueList> {
  const rows = await getQueueDepths(db, { projectId })
  // A queue with settings and nothing of this project in it may be another one's, whose names are not told.
  const shown = projectId === null ? rows : rows.filter((row) => row.status !== null)
  const byQueue = Map.groupBy(shown, (row) => row.queue)
  return { queues: [...byQueue].map(([queue, rows]) => toQueue(queue, rows)) }
}

function toQueue(queue: string, rows: readonly QueueDepthRow[]): QueueList['queues'][number] {
  const live = rows.filter((row) => row.count > 0)
  const oldest = rows.find((row) => row.status === 'runnable')?.oldest_ms
  return {
    queue,
    paused: rows.some((row) => row.paused),
    depth: Object.fromEntries(live.flatMap((row) => (row.status === null ? [] : [[row.status, row.count]]))),
    oldest_runnable_ms: oldest == null ? null : Math.max(0, Math.round(oldest)),
    unclaimable: rows.reduce((sum, row) => sum + row.unclaimable, 0),
  }
}
