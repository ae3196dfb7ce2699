//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise/web"
)

// pageIssues reads the issues for the page of supervise, as carboy orchestrate status does:
// from the state directory, without the process that serves them.
type pageIssues struct {
	dir    string
	client *carboy.Client
}

// List returns the issues of the state directory.
func (p pageIssues) List(ctx context.Context) (web.IssueList, error) {
	s, err := orchestrate.Status(ctx, p.dir)
	if err != nil {
		return web.IssueList{}, err
	}
	var out web.IssueList
	for _, i := range s.Issues {
		out.Issues = append(out.Issues, pageIssue(i))
	}
	for _, repo := range slices.Sorted(maps.Keys(s.Errors)) {
		x := s.Errors[repo]
		out.Failing = append(out.Failing, fmt.Sprintf("%s: %s (since %s, %d tries)", repo, x.Error, x.Since.Local().Format(time.DateTime), x.Tries))
	}
	return out, nil
}

// Issue returns an issue. One that is not begun has no turns.
func (p pageIssues) Issue(ctx context.Context, name string) (web.Issue, error) {
	k, err := orchestrate.ParseKey(name)
	if err != nil {
		return web.Issue{}, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	d, err := orchestrate.Describe(ctx, p.dir, k)
	if errors.Is(err, issues.ErrMissing) {
		return p.waiting(ctx, k)
	}
	if err != nil {
		return web.Issue{}, err
	}
	out := pageIssue(d.IssueStatus)
	for _, t := range d.Turns {
		x := web.Turn{
			Number: t.Number, For: t.Prompts, Began: t.Began, Outcome: t.Outcome, Why: t.Why, Summary: t.Summary, Commit: t.Commit, Verdict: t.Verdict, Work: t.Work,
			Tokens: t.Tokens, Operations: t.Operations, Refused: t.Refused, Runs: t.Runs,
		}
		if t.Ended != nil {
			x.Ended = *t.Ended
		}
		out.Turns = append(out.Turns, x)
	}
	return out, nil
}

// waiting returns an issue that has no record yet.
func (p pageIssues) waiting(ctx context.Context, k issues.Key) (web.Issue, error) {
	s, err := orchestrate.Status(ctx, p.dir)
	if err != nil {
		return web.Issue{}, err
	}
	for _, i := range s.Issues {
		if i.Issue == k.String() {
			return pageIssue(i), nil
		}
	}
	return web.Issue{}, fmt.Errorf("%v: %w", k, fs.ErrNotExist)
}

func pageIssue(i orchestrate.IssueStatus) web.Issue {
	out := web.Issue{
		Name: i.Issue, Title: i.Title, URL: i.URL, Agent: i.Agent, State: i.State, Ended: i.State == string(issues.Destroyed), Turn: i.Turn, Pull: i.Pull, PullURL: i.PullURL,
		Waits: i.Waits, Outcome: i.Outcome, Verdict: i.Verdict, Tokens: i.Tokens, Bottle: i.Slug, Branch: i.Branch, Provenance: i.Digest, Warnings: slices.Clone(i.Warnings),
	}
	if i.Failure != nil {
		out.Failing = i.Failure.Error
	}
	if i.Watchdog {
		out.Warnings = append(out.Warnings, "The agent was silent for too long, or ended without a report.")
	}
	if i.Strangers > 0 {
		out.Warnings = append(out.Warnings, fmt.Sprintf("Comments of people who may not prompt: %d.", i.Strangers))
	}
	return out
}

// Receipt returns the page that carboy receipt --html writes.
func (p pageIssues) Receipt(ctx context.Context, name string) (web.Receipt, error) {
	id, err := store.ParseID(name)
	if err != nil {
		return web.Receipt{}, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	r, err := p.client.Receipt(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return web.Receipt{}, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return web.Receipt{}, err
	}
	var b bytes.Buffer
	if err := receipt.HTML(&b, r); err != nil {
		return web.Receipt{}, err
	}
	return web.Receipt{HTML: b.Bytes(), Policy: receipt.Policy()}, nil
}
