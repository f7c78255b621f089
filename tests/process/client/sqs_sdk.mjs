// Uses the SDK as its users do, and prints what it was told. Run by test_js_sdk.py.
import * as sdk from "@aws-sdk/client-sqs";

const client = new sdk.SQSClient({
  endpoint: process.argv[2], region: "us-east-1", maxAttempts: 1,
  credentials: { accessKeyId: "goq", secretAccessKey: "goq" },
});
const ask = (name, input) => client.send(new sdk[name + "Command"](input));
const told = {};

const { QueueUrl } = await ask("CreateQueue", { QueueName: "orders", tags: { team: "a" } });
told.tags = (await ask("ListQueueTags", { QueueUrl })).Tags;
const MessageAttributes = {
  text: { DataType: "String", StringValue: "é\r\n<&>" },
  number: { DataType: "Number.int", StringValue: "-1.5e3" },
  bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255, 65]) },
};
const sent = await ask("SendMessage", { QueueUrl, MessageBody: "a\r\nß\u{1f600}", MessageAttributes });
let { Messages } = await ask("ReceiveMessage", {
  QueueUrl, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"], WaitTimeSeconds: 5,
});
told.isSame = Messages[0].MessageId === sent.MessageId;
told.body = Messages[0].Body;
told.attributes = Object.fromEntries(Object.entries(Messages[0].MessageAttributes).map(
  ([name, value]) => [name, value.StringValue ?? [...value.BinaryValue]]));
await ask("ChangeMessageVisibility", {
  QueueUrl, ReceiptHandle: Messages[0].ReceiptHandle, VisibilityTimeout: 0 });
({ Messages } = await ask("ReceiveMessage", {
  QueueUrl, MessageAttributeNames: ["te.*", "number"], AttributeNames: ["ApproximateReceiveCount"] }));
told.count = Messages[0].Attributes.ApproximateReceiveCount;
told.some = Object.keys(Messages[0].MessageAttributes);
await ask("DeleteMessage", { QueueUrl, ReceiptHandle: Messages[0].ReceiptHandle });
told.left = (await ask("ReceiveMessage", { QueueUrl })).Messages ?? null;

const Entries = [...Array(10).keys()].map((n) => ({ Id: `${n}`, MessageBody: `${n}`, MessageAttributes }));
told.batch = (await ask("SendMessageBatch", { QueueUrl, Entries })).Successful.length;
const found = [];
while (found.length < 10) {
  const answer = await ask("ReceiveMessage", {
    QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5, MessageAttributeNames: ["All"] });
  const handles = (answer.Messages ?? []).map((m, n) => ({ Id: `${n}`, ReceiptHandle: m.ReceiptHandle }));
  found.push(...(answer.Messages ?? []).map((m) => m.Body));
  if (handles.length) await ask("DeleteMessageBatch", { QueueUrl, Entries: handles });
}
told.found = found.sort();

const pages = [];
for (const QueueName of ["pages-1", "pages-2", "pages-3"]) await ask("CreateQueue", { QueueName });
for await (const page of sdk.paginateListQueues({ client, pageSize: 2 }, { QueueNamePrefix: "pages" })) {
  pages.push((page.QueueUrls ?? []).length);
}
told.pages = pages;

try {
  await ask("GetQueueUrl", { QueueName: "absent" });
} catch (error) {
  told.error = [error.name, error instanceof sdk.QueueDoesNotExist, error.$metadata.httpStatusCode];
}
try {
  await ask("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 11 });
} catch (error) {
  told.bound = error.name;
}
console.log(JSON.stringify(told));
