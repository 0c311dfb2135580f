// One kind of call by etcd's own client, over and over for some seconds, by so many at a time; it
// prints how many there were a second, so that ours can be held against it.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func processorSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	what, endpoint, inFlight := os.Args[1], os.Args[2], 1
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	check(err)
	if strings.HasSuffix(what, "-100") {
		inFlight = 100
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	check(err)
	ctx, value := context.Background(), strings.Repeat("v", 100)
	call := func() error {
		_, err := client.Get(ctx, "bench/one")
		return err
	}
	if strings.HasPrefix(what, "put") {
		call = func() error {
			_, err := client.Put(ctx, "bench/one", value)
			return err
		}
	}
	for range 100 {
		check(call())
	}
	var count atomic.Int64
	var callers sync.WaitGroup
	began, used := time.Now(), processorSeconds()
	end := began.Add(time.Duration(seconds * float64(time.Second)))
	for range inFlight {
		callers.Go(func() {
			for time.Now().Before(end) {
				check(call())
				count.Add(1)
			}
		})
	}
	callers.Wait()
	made := float64(count.Load())
	fmt.Println(made/time.Since(began).Seconds(), (processorSeconds()-used)/made*1e6)
}
