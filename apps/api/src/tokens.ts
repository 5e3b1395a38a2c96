import type { InjectionToken } from '@nestjs/common'

/** Injection is always by token: nothing depends on emitted type metadata. */
export const DB: InjectionToken = Symbol('DB')
export const HINTS: InjectionToken = Symbol('HINTS')
export const WAITS: InjectionToken = Symbol('WAITS')
export const HEALTH: InjectionToken = Symbol('HEALTH')
