import { type DynamicModule, Module } from '@nestjs/common'

/**
 * The process shell of this role: it starts, says that it lives, reports its health and stops.
 * Sealing the audit ledger comes with it; there is no ledger yet, so nothing is sealed and nothing pretends to be.
 */
@Module({})
export class SealerModule {
  static create(): DynamicModule {
    return { module: SealerModule }
  }
}
