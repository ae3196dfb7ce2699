//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/safetext"
)

const gateLong = `A gate judges a change before anyone trusts it. The change is a commit, the work tree
or the changes of a run. The gate runs each phase of its catalog in a fresh sealed
bottle and gives a verdict: every signal must pass.

The base's .carboy/gate.yaml and .carboy/gate-baseline.json decide, never those of the
change. --catalog takes a file of your own instead, which must lie outside of the
repository.`

func (a *app) gateCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "gate", GroupID: "main", Short: "judge a change in sealed bottles, before anyone trusts it", Long: gateLong,
		Example: `  carboy gate init                  a catalog for this repository
  carboy gate run                   judge HEAD
  carboy gate run --change RUN      judge what an agent's run changed
  carboy gate explain               the last verdict, with all it found`,
		Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.gateInitCmd(), a.gateRunCmd(), a.gateExplainCmd(), a.gateListCmd(), a.gateBaselineCmd(), a.gateOverrideCmd(), a.gateAttestCmd(), a.gateVerifyCmd(), a.gateRemoveCmd(), a.gateKindsCmd(), a.gateTraceCmd())
	return cmd
}

// gateCode returns the exit code of a verdict.
func gateCode(v *gate.Verdict) int {
	return exitcode.OfGate(v.Outcome, v.Override != nil)
}

// gateAdvice adds to an error of a gate what to do about it.
func gateAdvice(err error) error {
	var no *carboy.NotApprovedError
	switch {
	case err == nil:
	case errors.Is(err, carboy.ErrNothingBefore):
		return &advisedError{err, "commit what you approve, with its " + gate.CatalogPath + " (carboy gate init); then judge the next commit, or the work tree: carboy gate run --change ."}
	case errors.Is(err, carboy.ErrGateLocked):
		return &advisedError{err, "wait until it is over"}
	case errors.Is(err, carboy.ErrLedger):
		return &advisedError{err, "carboy audit verify shows what else was changed; carboy gate run --again judges anew"}
	case errors.Is(err, carboy.ErrNoCatalog):
		return &advisedError{err, "carboy gate init writes one for you to commit, or name one of your own: --catalog FILE"}
	case errors.Is(err, gate.ErrNoRevision):
		return &advisedError{err, "name a revision of this repository: --base main --change HEAD"}
	case errors.As(err, &no):
		return &advisedError{err, "nothing was changed; ask again when somebody is at carboy supervise (--wait TIME)"}
	case errors.Is(err, carboy.ErrNoVerdict):
		return &advisedError{err, "carboy gate list shows those that there are"}
	}
	return err
}

// gateEvents returns a function that prints a gate's progress on stderr.
func (a *app) gateEvents(quiet bool) func(carboy.GateEvent) {
	if quiet {
		return nil
	}
	return func(e carboy.GateEvent) {
		name := safetext.String(e.Signal, 60)
		switch {
		case e.Result == nil:
			a.say(dimText, "%s: running on the %s", name, e.Phase)
		case e.Result.Outcome == gate.Passed:
			a.say(greenText, "%s: passed after %s", name, e.Result.Duration.Round(time.Millisecond))
		default:
			a.say(redText, "%s: %s after %s", name, e.Result.Outcome, e.Result.Duration.Round(time.Millisecond))
		}
	}
}

func (a *app) gateInitCmd() *cobra.Command {
	var dir string
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use: "init", Short: "write a catalog and the first baseline for this repository",
		Long: `Find builds and tests here (Go, Node, Python, Rust, Make) and try them in bottles on the
directory as it is. Those that pass are written to .carboy/gate.yaml, and what they did
to .carboy/gate-baseline.json. Pinned dependencies are installed first, with a route to
their registry. If something can't be used, carboy says what to do. If no signal runs
tests, the exit code is 1.

Read both files, then commit them: the commit accepts them. If your allowed_signers
names somebody for carboy-gate@carboy.dev, sign the baseline before you commit: carboy
gate baseline sign.`,
		Example: "  carboy gate init\n  git add .carboy && git commit -m 'judge changes by a gate'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				b, err := c.GateInit(ctx, carboy.GateOptions{Dir: dir, OnEvent: a.gateEvents(quiet || asJSON)})
				if errors.Is(err, fs.ErrExist) {
					return &advisedError{err, "edit it by hand, or remove it to begin anew"}
				}
				if errors.Is(err, carboy.ErrNoCatalog) {
					return &advisedError{err, "run it where the project is (--dir DIR), or begin with one signal: carboy gate kinds"}
				}
				if err != nil {
					return gateAdvice(err)
				}
				var untested error
				if b.Untested {
					untested = &advisedError{errors.New("no signal runs tests: a change that removes them and breaks the program would pass"), "make the tests pass here, remove " + gate.CatalogPath + " and " + gate.BaselinePath + ", and run carboy gate init again; or write a signal of kind tests by hand (carboy gate kinds)"}
				}
				if asJSON {
					return errors.Join(untested, a.printJSON(struct {
						Schema  string            `json:"schema"`
						Files   []string          `json:"files"`
						Found   []string          `json:"found"`
						LeftOut map[string]string `json:"left_out"`
						Notes   map[string]string `json:"notes"`
						Verdict *gate.Verdict     `json:"verdict"`
					}{"carboy.dev/gate-init/v1", b.Files, b.Found, b.LeftOut, b.Notes, b.Verdict}))
				}
				for _, name := range slices.Sorted(maps.Keys(b.LeftOut)) {
					a.say(plainText, "%s is left out, since it does not pass here: %s", name, safetext.String(b.LeftOut[name], 300))
				}
				for _, name := range slices.Sorted(maps.Keys(b.Notes)) {
					a.say(plainText, "%s: %s", name, b.Notes[name])
				}
				a.say(greenText, "wrote %s for a project with %s", strings.Join(b.Files, " and "), strings.Join(b.Found, ", "))
				a.say(plainText, "next: read both, then git add .carboy && git commit; from then on carboy gate run judges changes")
				return untested
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the repository's `DIR` (default: the current directory)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing while it runs")
	return cmd
}

func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("name one "+what, "%q is one argument too many", safetext.String(args[1], 80))
		}
		return nil
	}
}

func onlyArg(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return ""
}

func (a *app) gateRunCmd() *cobra.Command {
	var o carboy.GateOptions
	var asJSON, quiet, why bool
	cmd := &cobra.Command{
		Use: "run", Short: "judge a change",
		Long: `Run every signal of the catalog on the change and report what they found. The tests run
on the base too, and the base's tests on the change if it edits tests: what passed must
be there and pass, also as the base has it.

If nothing that an earlier verdict depended on has changed, that verdict is given
again. --why names the input that changed; --again runs everything in any case.`,
		Example: `  carboy gate run
  carboy gate run --base main --change feature
  carboy gate run --change . --why
  carboy gate run --catalog ~/.config/carboy/gates/strict.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				o.OnEvent = a.gateEvents(quiet || asJSON)
				j, err := c.Gate(ctx, o)
				if err != nil {
					return gateAdvice(err)
				}
				if why && !j.Cached {
					a.say(plainText, "everything was run: %s", safetext.String(j.Miss, 400))
				}
				if why && j.Cached {
					a.say(plainText, "nothing was run: nothing that the verdict depended on has changed")
				}
				a.code = gateCode(j.Verdict)
				if asJSON {
					return a.printJSON(j.Verdict)
				}
				j.Text(a.shown(), false)
				if !quiet {
					a.gateNext(j)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "the repository's `DIR` (default: the current directory)")
	f.StringVar(&o.Base, "base", "", "the approved `REV` (default: where the change left main; HEAD for a run or the work tree)")
	f.StringVar(&o.Change, "change", "", "what is judged: a `REV`, a run, or . for the work tree (default HEAD)")
	f.StringVar(&o.Catalog, "catalog", "", "a `FILE` of your own instead of the base's "+gate.CatalogPath)
	f.BoolVar(&o.Again, "again", false, "run everything, even if an earlier verdict holds")
	f.BoolVar(&why, "why", false, "name the changed input that made everything run")
	f.BoolVar(&asJSON, "json", false, "print the verdict as JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "say nothing while it runs")
	cmd.MarkFlagDirname("dir")
	cmd.MarkFlagFilename("catalog", "yaml", "yml")
	return cmd
}

// gateNext says what can be done about a verdict that did not pass.
func (a *app) gateNext(j *carboy.Judged) {
	if j.Allowed() {
		return
	}
	a.say(plainText, "next: carboy gate explain %s has all of it, %s what the phases printed", j.ID, safetext.String(filepath.Join(j.Dir, gate.EvidenceDir), 300))
	for _, r := range j.Signals {
		if r.Kind == "trace" && len(r.Findings) > 0 && r.Outcome != gate.Passed {
			a.say(plainText, "if that is what it should do: carboy gate baseline diff %s, then carboy gate baseline accept --as NAME --key FILE", j.ID)
			break
		}
	}
	if len(j.LostTests()) > 0 {
		a.say(plainText, "if the tests are meant to go: carboy gate baseline accept --lost-tests --as NAME --key FILE %s", j.ID)
	}
	if len(j.ChangedTests()) > 0 {
		a.say(plainText, "if the tests are meant to ask for something else: carboy gate baseline accept --changed-tests --as NAME --key FILE %s", j.ID)
	}
	a.say(plainText, "a person can let it go on as it is: carboy gate override --reason TEXT %s", j.ID)
}

func (a *app) gateExplainCmd() *cobra.Command {
	format := choice{"text", "FORMAT", []string{"text", "json", "html", "junit", "sarif"}}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "explain [VERDICT]", Short: "show a verdict with all that it found",
		Long: `Show a verdict, by default the last one, in a form for people or for forges. A verdict
that was given again is shown as it was first given, with the trees of that time.

First the files beside it (evidence, inputs, the proposed baseline) are compared with
the verdict. If one was changed, exchanged, removed or added, it is named and the
verdict is not shown (exit code 13).`,
		Example: "  carboy gate explain\n  carboy gate explain --format html 01m8 >verdict.html\n  carboy gate explain --format sarif >gate.sarif",
		Args:    oneArg("verdict"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				v, dir, err := c.Verdict(ctx, onlyArg(args))
				if err == nil {
					err = c.CheckVerdict(ctx, v, dir)
				}
				if err != nil {
					return gateAdvice(err)
				}
				if asJSON {
					format.value = "json"
				}
				switch format.value {
				case "json":
					return a.printJSON(v)
				case "html":
					return v.HTML(a.stdout)
				case "junit":
					return v.JUnit(a.stdout)
				case "sarif":
					return v.SARIF(a.stdout)
				}
				v.Text(a.shown(), true)
				return nil
			})
		},
	}
	cmd.Flags().Var(&format, "format", "text, json, html, junit or sarif")
	cmd.Flags().BoolVar(&asJSON, "json", false, "the same as --format json")
	return cmd
}

func (a *app) gateListCmd() *cobra.Command {
	limit := whole{n: 20, top: 10_000, eg: "20"}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "list verdicts, newest first", Example: "  carboy gate list --limit 5", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				list, err := c.Verdicts(ctx, int(limit.n))
				if err != nil {
					return err
				}
				if asJSON {
					if list == nil {
						list = []*gate.Verdict{}
					}
					return a.printJSON(list)
				}
				w := a.shown()
				for _, v := range list {
					o := string(v.Outcome)
					if v.Override != nil {
						o += "*"
					}
					fmt.Fprintf(w, "%s  %s  %-12s %s\n", v.ID, v.At.Format("2006-01-02 15:04"), o, safetext.String(v.Change.Name, 60))
				}
				return nil
			})
		},
	}
	cmd.Flags().Var(&limit, "limit", "at most so many")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the verdicts as JSON")
	return cmd
}

func (a *app) gateAttestCmd() *cobra.Command {
	var bundle string
	cmd := &cobra.Command{
		Use: "attest [VERDICT]", Short: "print a verdict as signed attestations",
		Long: `Print two DSSE envelopes, one a line, signed with your key. They are in-toto statements
about the judged tree: one holds the verdict, the other SLSA provenance of how it was
judged. The verifying key is printed on stderr. A verdict that was given again attests
the commit and tree that it judged; carboy gate run --again judges the present ones.

With --bundle they are written to a new directory, with the verdict and all that it
names. Somebody who has your key from elsewhere can check the directory by carboy gate
verify, and needs nothing else of yours.`,
		Example: "  carboy gate attest >gate.intoto.jsonl\n  carboy gate attest --bundle verdict", Args: oneArg("verdict"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				v, _, err := c.Verdict(ctx, onlyArg(args))
				if err != nil {
					return gateAdvice(err)
				}
				var key string
				if bundle == "" {
					key, err = c.AttestVerdict(ctx, v.ID, a.stdout)
				} else {
					key, err = c.BundleVerdict(ctx, v.ID, bundle)
				}
				switch {
				case errors.Is(err, fs.ErrExist):
					return &advisedError{err, "name a directory that is not there yet"}
				case err != nil:
					return gateAdvice(err)
				}
				a.say(plainText, "signed with the Ed25519 key %s", key)
				if bundle != "" {
					of := "--tree " + v.Change.Digest
					if v.Change.Commit != "" {
						of = "--commit " + v.Change.Commit
					}
					a.say(plainText, "whoever has that key checks it: carboy gate verify --key %s %s %s", key, of, safetext.String(bundle, 200))
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&bundle, "bundle", "", "write them, with all that the verdict names, to a new `DIR`")
	cmd.MarkFlagDirname("bundle")
	return cmd
}

func (a *app) gateVerifyCmd() *cobra.Command {
	var o carboy.BundleOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify DIR", Short: "check a verdict from somebody else, with its evidence",
		Long: `Check a directory that carboy gate attest --bundle wrote: the key must have signed its
verdict, the verdict must be of the change that you name, and evidence, inputs and the
proposed baseline must match it. Nothing else is needed: no repository, no network, no
state of carboy's. If a file was changed, exchanged, removed or added, or the verdict is
of something else, the exit code is 13 and carboy says why.

Get the key from the person who judged, not from the directory. Name the change that
you deploy by --commit, --tree or both: otherwise any other verdict signed with this
key would do. A run's change has only a tree. --base and --catalog say what the change
must have been compared with and judged by. --no-override refuses a verdict that a
person set aside.

A verdict that was given again for another commit names the commit that was judged:
carboy gate run --again judges the present one.

If everything is intact, the exit code is that of the verdict, as with carboy gate run:
0 if every signal passed or a person has overridden it, 11 if a person must decide, 12
if it did not pass.`,
		Example: `  carboy gate verify --key 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo= --commit "$(git rev-parse HEAD)" verdict && deploy`,
		Args: func(cmd *cobra.Command, args []string) error {
			usage := func(format string, x ...any) error {
				return usagef("carboy gate verify --key KEY --commit HASH DIR", format, x...)
			}
			for _, name := range []string{"commit", "tree", "base", "catalog"} {
				// A failed $(git rev-parse …) gives "", which must not weaken the check.
				if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
					return usage("--%s is empty: name a hash, or leave it out", name)
				}
			}
			switch {
			case len(args) != 1 || o.Key == "":
				return usage("name one directory, and the key that must have signed")
			case o.Commit == "" && o.Tree == "":
				return usage("name the change by --commit, --tree, or both: otherwise a verdict on any other change would do")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := carboy.VerifyBundle(cmd.Context(), args[0], o)
			if err != nil {
				return gateAdvice(err)
			}
			a.code = exitcode.OfBundle(false, "", false)
			if r.Intact {
				a.code = gateCode(r.Verdict)
			}
			if asJSON {
				return a.printJSON(r)
			}
			for _, f := range r.Findings {
				fmt.Fprintln(a.stdout, safetext.String(f, 500))
			}
			if !r.Intact {
				return errors.New("there is no intact verdict on what you named that the key signed")
			}
			fmt.Fprintf(a.stdout, "intact: verdict %s with %s, signed by %s\n\n", safetext.String(r.Verdict.ID, 60), number(r.Files, "file", "files"), o.Key)
			r.Verdict.Text(a.shown(), false)
			return nil
		},
	}
	cmd.Flags().StringVar(&o.Key, "key", "", "the public `KEY` that must have signed, in base64")
	cmd.Flags().StringVar(&o.Commit, "commit", "", "the `HASH` of the commit that must have been judged, all of it")
	cmd.Flags().StringVar(&o.Tree, "tree", "", "the `SHA256` of the tree that must have been judged, as verdicts have it")
	cmd.Flags().StringVar(&o.Base, "base", "", "the `HASH` of the commit that it must have been compared with")
	cmd.Flags().StringVar(&o.Catalog, "catalog", "", "the `SHA256` of the catalog that must have judged")
	cmd.Flags().BoolVar(&o.NoOverride, "no-override", false, "refuse a verdict that a person set aside")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was found as JSON")
	return cmd
}

func (a *app) gateRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm VERDICT...", Short: "remove verdicts with their evidence",
		Long: `Remove verdicts with the files beside them, mostly traces and output of phases. The
audit log keeps who removed them, when, and each verdict's digest, so that carboy audit
verify does not miss them. A removed verdict is not given again.

A verdict that work refers to stays, and so does one that differs from its record. The
others are removed all the same; the exit code is that of the first that stayed.`,
		Example: "  carboy gate rm 01m8467kg5\n  carboy gate list --limit 1000 --json | jq -r '.[50:][].id' | xargs -r carboy gate rm",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usagef("carboy gate list shows the verdicts", "rm: name verdicts")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				code := exitcode.OK // of the first that stays
				for _, ref := range args {
					id, err := c.RemoveVerdict(ctx, ref)
					if err == nil {
						fmt.Fprintln(a.stdout, safetext.String(id, 60))
						continue
					}
					err = gateAdvice(err)
					if ctx.Err() != nil {
						return err
					}
					a.report(cmd, args, err, a.codeOf(cmd, err))
					code = exitcode.First(code, a.codeOf(cmd, err))
				}
				if a.code = code; code != 0 {
					return errReported
				}
				return nil
			})
		},
	}
}

func (a *app) gateKindsCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "kinds", Short: "list the kinds of signals that a catalog can ask for", Example: "  carboy gate kinds", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			type kind struct {
				Name    string   `json:"name"`
				Summary string   `json:"summary"`
				Runs    bool     `json:"runs"`
				Keys    []string `json:"keys"`
			}
			var list []kind
			for _, k := range gate.Kinds() {
				list = append(list, kind{k.Name, k.Summary, k.Runs, append([]string{}, k.Keys...)})
			}
			if asJSON {
				return a.printJSON(list)
			}
			for _, k := range list {
				fmt.Fprintf(a.stdout, "%-16s %s\n", k.Name, k.Summary)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the kinds as JSON")
	return cmd
}

func (a *app) gateBaselineCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "baseline", Short: "show, accept and sign what phases may do", Args: a.unknownCommand,
		Long: `The baseline lists what the approved phases of a gate executed, reached, read and
wrote. Anything new fails the trace signal until a person accepts and signs it. The
file takes effect once it is committed to the base.`,
		Example: "  carboy gate baseline diff\n  carboy gate baseline accept --as me@example.org --key ~/.ssh/id_ed25519\n  git add .carboy && git commit",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.baselineShowCmd(), a.baselineRecordCmd(), a.baselineDiffCmd(), a.baselineAcceptCmd(), a.baselineSignCmd())
	return cmd
}

func (a *app) baselineShowCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show", Short: "show this directory's baseline", Example: "  carboy gate baseline show", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				b, err := c.Baseline(ctx, ".")
				if errors.Is(err, fs.ErrNotExist) {
					return &advisedError{err, "carboy gate init or carboy gate baseline record makes one"}
				}
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(b)
				}
				w := a.shown()
				for _, e := range b.Entries {
					fmt.Fprintf(w, "%s, on %s\n", safetext.String(e.Signal, 60), safetext.String(e.Image, 100))
					for _, l := range []struct {
						name string
						list []string
					}{{"executes", e.Execs}, {"reaches", e.Endpoints}, {"reads", e.Reads}, {"writes", e.Writes}, {"asks for", e.Rights}} {
						for _, s := range l.list {
							fmt.Fprintf(w, "  %-8s %s\n", l.name, safetext.String(strings.Replace(s, "//", "/", 1), 300))
						}
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the baseline as JSON")
	return cmd
}

func (a *app) baselineDiffCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "diff [VERDICT]", Short: "show what a verdict's phases did beyond the baseline", Example: "  carboy gate baseline diff", Args: oneArg("verdict"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				d, err := c.BaselineDrift(ctx, ".", onlyArg(args))
				if err != nil {
					return gateAdvice(err)
				}
				if asJSON {
					return a.printJSON(d)
				}
				w := a.shown()
				for _, name := range slices.Sorted(maps.Keys(d)) {
					for _, x := range d[name] {
						for _, s := range x.New {
							fmt.Fprintf(w, "%s %s: + %s\n", safetext.String(name, 60), x.What, safetext.String(s, 300))
						}
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}
