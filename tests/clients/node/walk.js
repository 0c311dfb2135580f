// Everything the npm client `etcd3` does with a single member; ends with 0 if all of it held.
"use strict";

const assert = require("node:assert/strict");
const { Etcd3, EtcdLockFailedError } = require("etcd3");

async function keys(client) {
  await client.put("a").value("1");
  await client.put("b").value("2");
  assert.equal(await client.get("a").string(), "1");
  assert.equal(await client.get("missing").string(), null);
  assert.deepEqual(await client.getAll().strings(), { a: "1", b: "2" });
  assert.deepEqual(await client.getAll().sort("Key", "Descend").keys(), ["b", "a"]);
  assert.equal(await client.getAll().count(), 2);
  const deleted = await client.delete().prefix("b");
  assert.equal(deleted.deleted, "1");
}

async function transactions(client) {
  const attempt = () =>
    client
      .if("t", "Create", "==", 0)
      .then(client.put("t").value("first"))
      .else(client.get("t"))
      .commit();
  assert.equal((await attempt()).succeeded, true);
  const second = await attempt();
  assert.equal(second.succeeded, false);
  assert.equal(second.responses[0].response_range.kvs[0].value.toString(), "first");
}

async function watching(client) {
  const watcher = await client.watch().prefix("w/").create();
  const seen = [];
  const done = new Promise((resolve) => {
    const note = (kind) => (change) => {
      seen.push([kind, change.key.toString(), change.value.toString()]);
      if (seen.length === 3) resolve();
    };
    watcher.on("put", note("put"));
    watcher.on("delete", note("delete"));
  });
  await client.put("w/1").value("x");
  await client.put("other").value("y");
  await client.put("w/1").value("z");
  await client.delete().key("w/1");
  await done;
  assert.deepEqual(seen, [
    ["put", "w/1", "x"],
    ["put", "w/1", "z"],
    ["delete", "w/1", ""],
  ]);
  await watcher.cancel();
}

async function leasesAndLocks(client) {
  const lease = client.lease(30);
  await lease.put("leased").value("x");
  const id = await lease.grant();
  const { leases } = await client.leaseClient.leaseLeases();
  assert.deepEqual(leases.map((one) => one.ID), [id]);
  await lease.keepaliveOnce();
  await lease.revoke();
  assert.equal(await client.get("leased").string(), null);

  await client.lock("mutex").do(async () => {
    await assert.rejects(client.lock("mutex").acquire(), EtcdLockFailedError);
  });
}

async function election(client) {
  const contest = client.election("office", 10);
  const campaign = contest.campaign("me");
  await new Promise((resolve, reject) => campaign.on("elected", resolve).on("error", reject));
  assert.equal(await contest.leader(), "me");
  await campaign.resign();
}

async function main() {
  const client = new Etcd3({ hosts: `http://${process.argv[2]}` });
  try {
    for (const part of [keys, transactions, watching, leasesAndLocks, election]) {
      await part(client);
    }
    const status = await client.maintenance.status();
    assert.notEqual(status.leader, "0");
  } finally {
    client.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
