package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/reviews"
)

// reviewTime bounds all questions to a forge about one plan.
const reviewTime = 2 * time.Minute

// maxPosted bounds the changes that a posted plan lists.
const maxPosted = 100

// wanted returns what reviews must approve.
func wanted(m Made) reviews.Wanted {
	return reviews.Wanted{Digest: m.Digest, Commit: m.Commit, Created: m.Created, Expires: m.Expires, Destructive: m.Destructive(), Text: posted(m.Plan)}
}

// posted describes a plan for people at a forge, without the host's address and user. It is
// the same at each call.
func posted(p *plan.Plan) string {
	var b strings.Builder
	line := func(format string, args ...any) {
		b.WriteString(shown(newRedactor().Line(fmt.Sprintf(format, args...))) + "\n")
	}
	line("%s %s on %s, commit %s, wave %d", p.Kind, p.Module, p.Host.Name, p.Commit, p.Wave)
	mounts := "nothing"
	if m := p.Mounts(); len(m) > 0 {
		mounts = strings.Join(m, ", ")
	}
	line("project %s in %s, mounts %s", p.Target.Project, p.Target.Root, mounts)
	for i, c := range p.Changes {
		if i == maxPosted {
			line("... and %d changes more", len(p.Changes)-i)
			break
		}
		text := fmt.Sprintf("%s %s: %s to %s", c.What, c.Action, c.From, c.To)
		if c.Why != "" {
			text += "; " + c.Why
		}
		if c.Destructive {
			text += " [destructive]"
		}
		line("%s", text)
	}
	line("when it goes wrong, back to %s", p.Back())
	return b.String()
}

// openForge opens the forge that hosts.yaml names for a host.
func (e *Engine) openForge(h *hosts.Host) (reviews.Forge, error) {
	if h.Reviews == nil {
		return nil, approval.Mismatch("hosts.yaml names no reviews for the host, so a review approves nothing there")
	}
	f, err := e.Forge(h.Reviews)
	if err != nil {
		return nil, approval.Mismatch("%v", err)
	}
	return f, nil
}

// PostPlans posts plans at pull request [Engine].Pull of their hosts' forges, each at most
// once, so that people can approve them there. It posts nothing if [Engine.Apply] would begin
// with these approvals, or would refuse whatever people approve. The error is an [Error] with
// [Mismatch] if a forge, its pull request or the branch's protection does not suit.
func (e *Engine) PostPlans(ctx context.Context, plans [][]byte, approvals []approval.Signed) error {
	var x *Error
	missing := e.Judge(ctx, plans, approvals)
	if !errors.Is(missing, approval.ErrMismatch) && !(errors.As(missing, &x) && x.Outcome == Destructive) {
		return nil
	}
	err := e.postPlans(ctx, plans)
	if err != nil {
		err = errors.Join(err, e.NoteRefusal(ctx, plans, err))
	}
	return err
}

func (e *Engine) postPlans(ctx context.Context, plans [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	for _, b := range plans {
		p, digest, err := plan.Decode(b)
		if err != nil {
			return &Error{Mismatch, "", err, "make a new plan"}
		}
		_, h, err := e.host(p.Host.Name)
		if err != nil {
			return err
		}
		if len(p.Changes) == 0 {
			continue
		}
		f, err := e.openForge(h)
		if err == nil {
			err = reviews.Post(ctx, f, h.Reviews, e.Pull, wanted(Made{p, b, digest}))
			f.Close()
		}
		if err != nil {
			return &Error{Mismatch, h.Name, approval.Mismatch("%v", err), "docs/ship.md says what a forge needs; carboy ship approve signs a plan without one"}
		}
		e.progress(h.Name, "review", fmt.Sprintf("the plan is at pull request #%d of %s", e.Pull, h.Reviews.Repo))
	}
	return nil
}

// reviewers asks the forge for reviews that approve a plan. people are those who signed. It
// sets the order's reviews if both together are enough; the error, which matches
// [approval.ErrMismatch], says why not.
func (e *Engine) reviewers(ctx context.Context, o *order, people map[string]bool, now time.Time) error {
	if o.Destructive() && len(people) == 0 {
		return approval.Mismatch("the plan destroys something: reviews alone never approve that, and no signature does yet")
	}
	f, err := e.openForge(o.host)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	told, err := reviews.Read(ctx, f, o.host.Reviews, e.Pull, o.Created)
	if err != nil {
		return approval.Mismatch("%v", err)
	}
	all, err := reviews.Judge(o.host.Reviews, told, wanted(o.Made), now)
	if err != nil {
		return approval.Mismatch("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	all = slices.DeleteFunc(all, func(a reviews.Approval) bool { return people[a.Approver] })
	if n := len(people) + len(all); n < o.host.Approvals {
		return approval.Mismatch("%d of %d approvals, %d of them by review", n, o.host.Approvals, len(all))
	}
	o.reviews = all
	return nil
}

// reviewedStill judges the approvals of an order again if a review is among them. It
// returns an error if other reviews approve it now than before.
func (e *Engine) reviewedStill(ctx context.Context, o *order) error {
	if len(o.reviews) == 0 {
		return nil
	}
	before := o.reviews
	if err := e.judgeAgain(ctx, []*order{o}, o.signed); err != nil {
		return err
	}
	if !slices.EqualFunc(before, o.reviews, reviews.Approval.Same) {
		return fail(Mismatch, o.host.Name, "apply again", "other reviews approve the plan than a moment ago")
	}
	return nil
}

// auditReviews writes each review of an order to the audit log, as what the forge told.
func (e *Engine) auditReviews(ctx context.Context, o *order) error {
	var errs []error
	for _, a := range o.reviews {
		errs = append(errs, e.auditEvent(ctx, audit.Approval, audit.Allowed, o.Plan, o.Digest, a.Approver+" by review",
			fmt.Sprintf("the forge told at %s of %s, submitted %s; no key signed it", a.Asked.Format(time.RFC3339), a, a.Submitted.Format(time.RFC3339))))
	}
	return errors.Join(errs...)
}
