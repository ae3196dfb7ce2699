//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const egressLogLong = `Show the network requests of a run, one a line, also while it runs: refused names,
connections and requests, secrets found on their way out, and injected instructions on
their way in. With "log: 2" in the run's route file, allowed ones are shown too; with
"log: 0" nothing is kept.

The columns are the time since the run's start in seconds, the verdict (or what was
done about a finding), the subject, and the reason. Watched secrets are masked in every
form that is known. The file holds 32 MiB and counts what it left out; the receipt
counts all requests. With --json every line is an object, of the schema
docs/schemas/egress-log.v1.json.`

const egressLogExample = `  carboy egress log                             the newest run here
  carboy egress log --follow                    as it happens
  carboy egress log --denied 01k9x3m7
  carboy egress log --json | jq -r 'select(.kind == "found") | .secret'`

type egressLogFlags struct{ follow, denied, json bool }

func (a *app) egressLogCmd() *cobra.Command {
	f := &egressLogFlags{}
	cmd := &cobra.Command{
		Use: "log [RUN]", Short: "show the network requests of a run", Long: egressLogLong, Example: egressLogExample,
		Args: atMostRun, ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.readRun(cmd, args, f.follow, func(ctx context.Context, c *carboy.Client, m store.Meta) error {
				return a.egressLog(ctx, c, m, f)
			})
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "continue until the run has ended")
	cmd.Flags().BoolVar(&f.denied, "denied", false, "only what was refused or blocked")
	cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON object per line")
	return cmd
}

func (a *app) egressLog(ctx context.Context, c *carboy.Client, m store.Meta, f *egressLogFlags) error {
	var r *egresslog.Reader
	defer func() {
		if r != nil {
			r.Close()
		}
	}()
	out := a.stdout
	if !f.json {
		out = a.shown()
	}
	w := bufio.NewWriterSize(out, 64<<10)
	begun := m.Created
	if m.Started != nil {
		begun = *m.Started
	}
	for over, looked := m.State.Over(), 0; ; {
		if r == nil {
			var err error
			if r, err = c.EgressLog(m.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if r != nil {
			if err := a.egressLines(w, r, begun, f); err != nil {
				return err
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if over || !f.follow {
			break
		}
		// One more look after the end: the last lines are written before it.
		if looked++; looked%overPolls == 0 {
			var err error
			if over, err = c.Over(ctx, m.ID); err != nil {
				return err
			}
			if over {
				continue
			}
		}
		if err := wait(ctx, followPoll); err != nil {
			return err
		}
	}
	if r == nil {
		a.say(plainText, "run %s has no log of requests: nothing was refused or found, or its route file says log: 0 (log: 2 keeps what is allowed, too)", m.ID)
	}
	return nil
}

// egressLines prints the lines that the log has now.
func (a *app) egressLines(w io.Writer, r *egresslog.Reader, begun time.Time, f *egressLogFlags) error {
	for {
		rec, line, err := r.Next()
		if err != nil || rec == nil {
			return err
		}
		switch {
		case f.denied && rec.Verdict != "refused" && rec.Action != "blocked" && rec.Kind != egresslog.LeftOut && rec.Kind != egresslog.Head:
			continue
		case f.json:
			_, err = w.Write(line)
		case rec.Kind != egresslog.Head:
			err = a.egressLine(w, rec, begun)
		}
		if err != nil {
			return err
		}
	}
}

func (a *app) egressLine(w io.Writer, r *egresslog.Entry, begun time.Time) error {
	word, tone := first(r.Verdict, r.Action, string(r.Kind)), dimText
	switch {
	case word == "refused" || word == "blocked":
		tone = redText
	case word == "allowed":
		tone = greenText
	}
	s := fmt.Sprintf("%9.3f  %s", max(0, r.Time.Sub(begun).Seconds()), a.paint(a.stdout, tone, fmt.Sprintf("%-8s", safetext.String(word, 20))))
	for _, part := range []string{egressWhat(r), egressWhy(r)} {
		if part != "" {
			s += "  " + part
		}
	}
	_, err := fmt.Fprintln(w, s)
	return err
}

func egressWhat(r *egresslog.Entry) string {
	to := eventTarget(carboy.Event{Name: r.Host, Port: r.Port})
	switch r.Kind {
	case egresslog.Name:
		return "name " + to
	case egresslog.Connection:
		return safetext.String(first(r.Protocol, "connection"), 20) + " " + to
	case egresslog.Request:
		return safetext.String(first(r.Method, "request"), 40) + " " + to + safetext.String(r.Path, 300)
	case egresslog.Found:
		way := " to "
		if r.Inbound {
			way = " from "
		}
		s := strings.TrimSpace(receipt.Plain(r.What) + " " + r.Secret)
		if r.Transform != "" && r.Transform != "plain" {
			s += " as " + r.Transform
		}
		return safetext.String(s+" in the "+r.Place, 400) + way + to
	}
	if r.Host != "" {
		return to
	}
	return ""
}

func egressWhy(r *egresslog.Entry) string {
	var parts []string
	add := func(s string) {
		if s != "" {
			parts = append(parts, safetext.String(s, 400))
		}
	}
	if r.Status != 0 {
		add(fmt.Sprint(r.Status))
	}
	why := r.Reason
	if why != "" && why != "route" {
		if r.Detail != "" {
			why += ": " + r.Detail
		}
		add(receipt.Plain(why))
	} else {
		add(r.Detail)
	}
	add(r.Rule)
	if r.Credential != "" {
		add("with " + r.Credential)
	}
	if r.Up+r.Down > 0 {
		add(receipt.Bytes(r.Up) + " up, " + receipt.Bytes(r.Down) + " down")
	}
	if r.Count > 1 {
		add(fmt.Sprintf("%d times so far", r.Count))
	}
	return strings.Join(parts, "; ")
}
