import { type Machine, Scheduler } from '@holdfast/engine'
import type { RoleResources } from '@holdfast/host'
import { type DynamicModule, Module } from '@nestjs/common'
import type { SchedulerEnv } from './env.ts'

@Module({})
export class SchedulerModule {
  static with(
    { db, connection, hints, logger, worker, listen }: RoleResources,
    env: SchedulerEnv,
    machines: readonly Machine[],
  ): DynamicModule {
    const scheduler = {
      provide: Scheduler,
      useFactory: () =>
        new Scheduler({
          db,
          connection,
          machines,
          worker,
          hints,
          logger,
          listen,
          flush: env.HOLDFAST_FLUSH,
          leaseMs: env.HOLDFAST_LEASE_MS,
          maxIdleMs: env.HOLDFAST_MAX_IDLE_MS,
          drainMs: env.HOLDFAST_DRAIN_MS,
          ...(env.HOLDFAST_QUEUES === undefined ? {} : { queues: env.HOLDFAST_QUEUES }),
          ...(env.HOLDFAST_HEARTBEAT_MS === undefined ? {} : { heartbeatMs: env.HOLDFAST_HEARTBEAT_MS }),
        }),
    }
    return { module: SchedulerModule, providers: [scheduler] }
  }
}
