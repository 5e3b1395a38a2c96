import { type HostEnv, hostEnv, parseEnv } from '@holdfast/host'

export const readEnv = (): HostEnv => parseEnv(hostEnv)
