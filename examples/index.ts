export { checkout } from './checkout.ts'
export { sendEmail } from './send-email.ts'
