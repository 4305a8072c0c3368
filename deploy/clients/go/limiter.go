package main

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"porteiro.example/polite/api"
)

const (
	tries       = 5
	firstWait   = 50 * time.Millisecond // after calls that failed
	longestWait = 2 * time.Second
	hintJitter  = 0.1 // those who were told the same time should not come back together
	renewAgain  = 200 * time.Millisecond
)

// ErrOverload is for work that failed for want of capacity: the server learns from it.
var ErrOverload = errors.New("overload")

// ErrLeaseLost is the cause of the work's context when its lease ended early.
var ErrLeaseLost = errors.New("the lease was lost")

// Refused says that there is no permit, and no point in asking on. HttpStatus of the answer says
// what an HTTP server should answer, RetryAfter when to come back.
type Refused struct{ Answer *api.AcquireResponse }

func (r *Refused) Error() string { return r.Answer.Decision.String() }

// Limiter is a connection to one porteiro.
type Limiter struct {
	conn   *grpc.ClientConn
	client api.LimiterServiceClient
	// Log is told what happens.
	Log func(event string, fields map[string]any)
}

// Dial makes a Limiter for host:port. It connects when it is first used.
func Dial(target string) (*Limiter, error) {
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Notices a server that is gone without a word.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	return &Limiter{conn, api.NewLimiterServiceClient(conn), func(string, map[string]any) {}}, nil
}

// Close closes the connection.
func (l *Limiter) Close() error { return l.conn.Close() }

// Ask says what is asked for.
type Ask struct {
	Domain  string
	Entries [][2]string
	Permits uint64
	// TTL of the lease; 0 is the rule's.
	TTL time.Duration
	// Within is how long to ask at most. The server is told: it says hopeless when coming back is
	// too late.
	Within time.Duration
	// Idempotent sends a request id, so a call whose answer was lost can be repeated without taking
	// a second lease. Without one such a call is not repeated.
	Idempotent bool
}

// Do runs work under a lease: asks for it, renews it while the work runs, and releases it at its end: SUCCESS when it returned nil, DROPPED for ErrOverload, IGNORED for any other
// error (says nothing about capacity) and for a panic. The context of the work is cancelled when
// the lease ends early: somebody else may have the permits.
func (l *Limiter) Do(ctx context.Context, ask Ask, work func(context.Context) error) (err error) {
	request := &api.AcquireRequest{Domain: ask.Domain, Items: []*api.Item{ask.item()}}
	if ask.TTL > 0 {
		request.Ttl = durationpb.New(ask.TTL)
	}
	if ask.Idempotent {
		request.RequestId = []byte(rand.Text())
	}
	answer, asked, err := l.acquire(ctx, request, ask.Within)
	if err != nil {
		return err
	}
	outcome := api.LeaseEnd_IGNORED
	working, lose := context.WithCancelCause(ctx)
	// Without an id no item had a limit on work in flight.
	if answer.LeaseId != "" {
		defer func() { l.release(answer.LeaseId, outcome) }()
		go l.keep(working, lose, request, answer, asked)
	}
	defer lose(nil) // ends the renewals before the release
	err = work(working)
	if err == nil {
		outcome = api.LeaseEnd_SUCCESS
	} else if errors.Is(err, ErrOverload) {
		outcome = api.LeaseEnd_DROPPED
	}
	return err
}

func (a Ask) item() *api.Item {
	descriptor := &ratelimit.RateLimitDescriptor{}
	for _, entry := range a.Entries {
		descriptor.Entries = append(descriptor.Entries,
			&ratelimit.RateLimitDescriptor_Entry{Key: entry[0], Value: entry[1]})
	}
	return &api.Item{Descriptor_: descriptor, Permits: &a.Permits}
}

// acquire returns the answer that grants, and when it was asked for.
func (l *Limiter) acquire(ctx context.Context, request *api.AcquireRequest, within time.Duration) (*api.AcquireResponse, time.Time, error) {
	deadline := time.Now().Add(within)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for number := 1; ; number++ {
		asked := time.Now()
		answer, err := l.client.Acquire(ctx, request)
		var wait time.Duration
		if err != nil {
			code := status.Code(err)
			l.Log("lost", map[string]any{"number": number, "code": code.String()})
			// The connection failed, so the call may or may not have been decided.
			lost := code == codes.Unavailable || code == codes.DeadlineExceeded
			// Full jitter: anything up to a bound that doubles.
			wait = mathrand.N(min(longestWait, firstWait<<(number-1)) + 1)
			late := time.Now().Add(wait).After(deadline)
			if !lost || len(request.RequestId) == 0 || number == tries || late {
				return nil, asked, err
			}
		} else {
			switch answer.Decision {
			case api.AcquireResponse_GRANTED, api.AcquireResponse_REPLAYED:
				l.Log("granted", map[string]any{"number": number})
				return answer, asked, nil
			}
			told := any(nil)
			if answer.RetryAfter != nil {
				told = answer.RetryAfter.AsDuration().Seconds()
			}
			l.Log("refused", map[string]any{
				"number": number, "decision": answer.Decision.String(), "retry_after": told})
			later := answer.Decision == api.AcquireResponse_REFUSED || answer.Decision == api.AcquireResponse_DRAINING
			if !later || answer.Hopeless || answer.RetryAfter == nil || number == tries {
				return nil, asked, &Refused{answer}
			}
			hint := answer.RetryAfter.AsDuration()
			wait = hint + time.Duration(mathrand.Float64()*hintJitter*float64(hint)) // never less than told
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, asked, ctx.Err()
		}
	}
}

// keep renews until the work is over, and cancels the work when that fails.
func (l *Limiter) keep(ctx context.Context, lose context.CancelCauseFunc, request *api.AcquireRequest,
	answer *api.AcquireResponse, asked time.Time) {
	// Counted from before the call: the server's own countdown began later.
	ends := asked.Add(answer.ExpiresIn.AsDuration())
	next := asked.Add(answer.RenewAfter.AsDuration())
	for {
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		asked = time.Now()
		renewing, cancel := context.WithDeadline(ctx, ends)
		answer, err := l.client.Renew(renewing, &api.RenewRequest{
			Leases: []*api.LeaseRenewal{{LeaseId: answer.LeaseId, Ttl: request.Ttl}}})
		cancel()
		if err != nil {
			if next = time.Now().Add(renewAgain); next.After(ends) {
				lose(ErrLeaseLost)
				return
			}
			continue
		}
		result := answer.Results[0]
		l.Log("renewed", map[string]any{"status": result.Status.String()})
		if result.Status != api.RenewResult_RENEWED {
			lose(ErrLeaseLost)
			return
		}
		life := result.ExpiresIn.AsDuration()
		ends, next = asked.Add(life), asked.Add(life/2)
	}
}

// release gives the permits back. Lost on the way, they come back at the end of the TTL.
func (l *Limiter) release(id string, outcome api.LeaseEnd_Outcome) {
	// Not the caller's context: that may be what ended the work.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	answer, err := l.client.Release(ctx, &api.ReleaseRequest{
		Leases: []*api.LeaseEnd{{LeaseId: id, Outcome: outcome}}})
	state := status.Code(err).String()
	if err == nil {
		state = answer.Results[0].Status.String()
	}
	l.Log("released", map[string]any{"status": state})
}
