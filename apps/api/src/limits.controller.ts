import {
  Channels,
  HoldfastError,
  type LimitList,
  LimitName,
  type LimitPolicy,
  PutGateRequest,
  PutRateLimitRequest,
  type ProjectId,
} from '@holdfast/contracts'
import { WirePipe } from '@holdfast/host'
import {
  createProject,
  findProject,
  type HintSender,
  type LimitPolicyRow,
  type LimitUseRow,
  listGateKeys,
  listLimits,
  putGate,
  putRateLimit,
  releaseRateLine,
  wakeLines,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { Body, Controller, Get, Inject, Param, Put, UseGuards } from '@nestjs/common'
import { Caller, OperatorGuard, type Principal, ProjectGuard } from './principal.ts'
import { DB, HINTS } from './tokens.ts'

/** Keys of a limit that one answer shows. */
const KEYS_SHOWN = 100
/** Whose limits are the operator's: quotas that several projects share. */
const SYSTEM = 'system'

/** Changes limits, and lets those go who may go now. */
class LimitChanges {
  readonly #db: Db
  readonly #hints: HintSender
  constructor(db: Db, hints: HintSender) {
    this.#db = db
    this.#hints = hints
  }

  async putRate(projectId: ProjectId, name: string, { rate, period: periodMs, burst, shards }: PutRateLimitRequest): Promise<LimitPolicy> {
    const [row] = await putRateLimit(this.#db, {
      projectId,
      name: limitName(name),
      rate,
      periodMs,
      burst: burst ?? Math.max(1, rate),
      shards,
    })
    await releaseRateLine(this.#db, { projectId, name })
    // Which queues they are in is not worth a look: their schedulers' timers and polls find them.
    this.#hints.send(Channels.timer, '0')
    return toPolicy(row)
  }

  async putGate(projectId: ProjectId, name: string, { capacity }: PutGateRequest): Promise<LimitPolicy> {
    const [row] = await putGate(this.#db, { projectId, name: limitName(name), capacity })
    const keys = await listGateKeys(this.#db, { projectId, name })
    const woken = await wakeLines(
      this.#db,
      keys.map(({ key }) => ({ projectId, key })),
    )
    for (const queue of woken) this.#hints.send(Channels.runnable, queue)
    return toPolicy(row)
  }

  async list(projectId: ProjectId): Promise<LimitList> {
    const rows = await listLimits(this.#db, { projectId, limit: KEYS_SHOWN })
    return { limits: [...Map.groupBy(rows, (row) => `${row.kind} ${row.name}`).values()].map(toUse) }
  }
}

@Controller('v1/limits')
@UseGuards(ProjectGuard)
export class LimitsController {
  readonly #changes: LimitChanges
  constructor(@Inject(DB) db: Db, @Inject(HINTS) hints: HintSender) {
    this.#changes = new LimitChanges(db, hints)
  }

  @Put('rate/:name')
  putRate(
    @Param('name') name: string,
    @Body(new WirePipe(PutRateLimitRequest, 'invalid_limit')) body: PutRateLimitRequest,
    @Caller() { projectId }: Principal,
  ): Promise<LimitPolicy> {
    return this.#changes.putRate(projectId, name, body)
  }

  @Put('gate/:name')
  putGate(
    @Param('name') name: string,
    @Body(new WirePipe(PutGateRequest, 'invalid_limit')) body: PutGateRequest,
    @Caller() { projectId }: Principal,
  ): Promise<LimitPolicy> {
    return this.#changes.putGate(projectId, name, body)
  }

  @Get()
  list(@Caller() { projectId }: Principal): Promise<LimitList> {
    return this.#changes.list(projectId)
  }
}

/** The limits of the project `system`, which is made with the first of them. */
@Controller('manage/v1/limits')
@UseGuards(OperatorGuard)
export class ManageLimitsController {
  readonly #db: Db
  readonly #changes: LimitChanges
  constructor(@Inject(DB) db: Db, @Inject(HINTS) hints: HintSender) {
    this.#db = db
    this.#changes = new LimitChanges(db, hints)
  }

  @Put('rate/:name')
  async putRate(
    @Param('name') name: string,
    @Body(new WirePipe(PutRateLimitRequest, 'invalid_limit')) body: PutRateLimitRequest,
  ): Promise<LimitPolicy> {
    return this.#changes.putRate(await this.#system(limitName(name)), name, body)
  }

  @Put('gate/:name')
  async putGate(
    @Param('name') name: string,
    @Body(new WirePipe(PutGateRequest, 'invalid_limit')) body: PutGateRequest,
  ): Promise<LimitPolicy> {
    return this.#changes.putGate(await this.#system(limitName(name)), name, body)
  }

  @Get()
  async list(): Promise<LimitList> {
    const [found] = await findProject(this.#db, { name: SYSTEM })
    return found === undefined ? { limits: [] } : this.#changes.list(found.id)
  }

  async #system(_checkedName: string): Promise<ProjectId> {
    // Two operators at once: the one that comes second finds what the first has made.
    const [found] = await findProject(this.#db, { name: SYSTEM })
    if (found !== undefined) return found.id
    const [made] = await createProject(this.#db, { name: SYSTEM })
    const id = made?.id ?? (await findProject(this.#db, { name: SYSTEM }))[0]?.id
    if (id === undefined) throw new Error('the project `system` is neither there nor made')
    return id
  }
}

function limitName(name: string): string {
  const parsed = LimitName.safeParse(name)
  if (!parsed.success) throw new HoldfastError('invalid_limit', `name: ${parsed.error.issues[0]?.message ?? 'it does not fit'}`)
  return parsed.data
}

const whole = (value: string | number | null): number | undefined => (value === null ? undefined : Number(value))

function toPolicy(row: LimitPolicyRow | undefined): LimitPolicy {
  if (row === undefined) throw new Error('the limit was not stored')
  const { kind, name } = row
  const updated_at = row.updated_at.toISOString()
  return kind === 'gate'
    ? { kind, name, capacity: row.capacity ?? 0, updated_at }
    : {
        kind,
        name,
        rate: whole(row.rate) ?? 0,
        period_ms: whole(row.period_ms) ?? 0,
        burst: row.burst ?? 0,
        shards: row.shards ?? 0,
        updated_at,
      }
}

const toUse = (rows: readonly LimitUseRow[]): LimitList['limits'][number] => ({
  ...toPolicy(rows[0]),
  keys: rows.flatMap(({ key, held, tokens, waiting, kind }) =>
    key === null ? [] : [kind === 'gate' ? { key, held: held ?? 0, waiting } : { key, tokens: whole(tokens) ?? 0, waiting }],
  ),
})
