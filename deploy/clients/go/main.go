// Works for a while under a lease and says what happens, one JSON object a line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/status"
)

var started = time.Now()

func say(event string, fields map[string]any) {
	line := map[string]any{"at": time.Since(started).Seconds(), "event": event}
	for key, value := range fields {
		line[key] = value
	}
	text, _ := json.Marshal(line) // numbers and texts only
	fmt.Println(string(text))
}

func main() {
	target := flag.String("target", "127.0.0.1:8081", "")
	upstream := flag.String("upstream", "search", "whose permits")
	permits := flag.Uint64("permits", 1, "")
	ttl := flag.Float64("ttl", 0, "seconds; default: the rule's")
	within := flag.Float64("within", 30, "seconds to ask for")
	work := flag.Float64("work", 0.5, "seconds")
	fail := flag.Bool("fail", false, "the work times out")
	once := flag.Bool("once", false, "no request id: a lost call is not repeated")
	flag.Parse()

	limiter, err := Dial(*target)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
	defer limiter.Close()
	limiter.Log = say
	err = limiter.Do(context.Background(), Ask{
		Domain:     "clients",
		Entries:    [][2]string{{"upstream", *upstream}},
		Permits:    *permits,
		TTL:        seconds(*ttl),
		Within:     seconds(*within),
		Idempotent: !*once,
	}, func(ctx context.Context) error {
		// The work. Here it only waits, and stops when the lease is lost.
		select {
		case <-time.After(seconds(*work)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if *fail {
			return fmt.Errorf("no answer from the upstream: %w", ErrOverload)
		}
		return nil
	})
	var refused *Refused
	switch _, isStatus := status.FromError(err); {
	case err == nil:
		say("done", nil)
	case errors.As(err, &refused), isStatus:
		say("gave_up", map[string]any{"why": err.Error()})
		os.Exit(1)
	default:
		say("failed", map[string]any{"why": err.Error()})
		os.Exit(2)
	}
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
