// One run with nats.js: `node measure.mjs URL publish|batch|consume COUNT` prints the messages per second.
import { jetstream } from "@nats-io/jetstream";
import { startFastIngest } from "@nats-io/jetstream/internal";
import { connect } from "@nats-io/transport-node";

const [url, what, count] = process.argv.slice(2);
const COUNT = Number(count);
const WINDOW = 1000; // number of unanswered messages
const data = new Uint8Array(128).fill(120);
const subject = (number) => `small.${number % 100}`;
const connection = await connect({ servers: url });
const js = jetstream(connection);

const works = {
  async publish() {
    for (let start = 0; start < COUNT; start += WINDOW) {
      const answers = [];
      for (let number = start; number < Math.min(start + WINDOW, COUNT); number++) {
        answers.push(js.publish(subject(number), data));
      }
      await Promise.all(answers);
    }
  },
  async batch() {
    const batch = await startFastIngest(connection, subject(0), data, { allowGaps: false, ackInterval: 1000 });
    for (let number = 1; number < COUNT - 1; number++) await batch.add(subject(number), data);
    const ack = await batch.last(subject(COUNT - 1), data);
    if (ack.count !== COUNT) throw new Error(`${ack.count} of ${COUNT} are stored`);
  },
  async consume() {
    const consumer = await js.consumers.get("SMALL", "javascript");
    const messages = await consumer.consume();
    let read = 0;
    for await (const _ of messages) if (++read === COUNT) break;
  },
};

const start = performance.now();
await works[what]();
console.log((COUNT / (performance.now() - start)) * 1000);
await connection.close();
