// Recipes of etcd's own client, one per run: what it is to do comes as arguments, what has happened
// is printed, and it goes on when it reads a line. So a test can hold ours against them.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
	"go.etcd.io/etcd/client/v3/leasing"
)

var input = bufio.NewScanner(os.Stdin)

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// tell prints what has happened, and waits for a line.
func tell(values ...any) string {
	fmt.Println(values...)
	if !input.Scan() {
		os.Exit(1)
	}
	return input.Text()
}

func main() {
	endpoint, what, name := os.Args[1], os.Args[2], os.Args[3]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	check(err)
	run(client, session, what, name)
	check(session.Close())
	fmt.Println("done")
}

func run(client *clientv3.Client, session *concurrency.Session, what, name string) {
	ctx := context.Background()
	switch what {
	case "lock":
		mutex := concurrency.NewMutex(session, name)
		if mutex.TryLock(ctx) != nil {
			tell("busy")
			check(mutex.Lock(ctx))
		}
		held, err := client.Get(ctx, mutex.Key())
		check(err)
		tell("held", held.Kvs[0].CreateRevision)
		check(mutex.Unlock(ctx))
	case "election":
		election := concurrency.NewElection(session, name)
		check(election.Campaign(ctx, "go"))
		value := tell("leads", election.Rev())
		check(election.Proclaim(ctx, value))
		tell("proclaimed")
		check(election.Resign(ctx))
	case "leader":
		leader, err := concurrency.NewElection(session, name).Leader(ctx)
		check(err)
		fmt.Println("leader", string(leader.Kvs[0].Value))
	case "queue":
		queue := recipe.NewQueue(client, name)
		check(queue.Enqueue("from go"))
		tell("put")
		value, err := queue.Dequeue()
		check(err)
		fmt.Println("got", value)
	case "priority":
		queue := recipe.NewPriorityQueue(client, name)
		check(queue.Enqueue("from go", 5))
		tell("put")
		value, err := queue.Dequeue()
		check(err)
		fmt.Println("got", value)
	case "barrier":
		barrier := recipe.NewBarrier(client, name)
		check(barrier.Hold())
		tell("holds")
		check(barrier.Release())
		tell("released")
		check(barrier.Wait())
	case "double":
		count, err := strconv.Atoi(os.Args[4])
		check(err)
		barrier := recipe.NewDoubleBarrier(session, name, count)
		check(barrier.Enter())
		tell("entered")
		check(barrier.Leave())
	case "read":
		lock := recipe.NewRWMutex(session, name)
		check(lock.RLock())
		tell("held")
		check(lock.RUnlock())
	case "write":
		lock := recipe.NewRWMutex(session, name)
		check(lock.Lock())
		tell("held")
		check(lock.Unlock())
	case "leasing":
		kv, stop, err := leasing.NewKV(client, name+"/own/")
		check(err)
		defer stop()
		found, err := kv.Get(ctx, name)
		check(err)
		tell("got", string(found.Kvs[0].Value))
		found, err = kv.Get(ctx, name)
		check(err)
		tell("got", string(found.Kvs[0].Value))
		_, err = kv.Put(ctx, name, "from go")
		check(err)
		tell("put")
	case "stm":
		for range 20 {
			_, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
				number, _ := strconv.Atoi(stm.Get(name))
				stm.Put(name, strconv.Itoa(number+1))
				return nil
			})
			check(err)
		}
	default:
		fmt.Println("error: nothing known of", what)
		os.Exit(2)
	}
}
