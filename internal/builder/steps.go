package builder

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/carboy/carboy/internal/dockerfile"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// run carries out RUN, unless its result is kept.
func (st *stage) run(ctx context.Context, s *dockerfile.Step) error {
	dir := st.config.WorkingDir
	if dir == "" {
		dir = "/"
	}
	c := &plan.Inside{Args: st.shell(s), Env: st.env(), Dir: dir, User: st.config.User}
	allow, private := slices.Sorted(slices.Values(st.w.o.Allow)), slices.Sorted(slices.Values(st.w.o.AllowPrivate))
	st.key = key(st.key, "run", c, allow, private)
	st.changed = true
	path, ok := st.w.kept(st.key)
	st.w.say(s, ok)
	if ok {
		st.upper, st.pending = path, nil
		return nil
	}
	return st.carry(ctx, s, c)
}

// carry carries out what waits, and then a command, in one bottle. It keeps what has
// changed under the stage's key.
func (st *stage) carry(ctx context.Context, s *dockerfile.Step, c *plan.Inside) error {
	if len(st.pending) == 0 && c == nil {
		return nil
	}
	if path, ok := st.w.kept(st.key); ok && c == nil {
		st.upper, st.pending = path, nil
		return nil
	}
	o := order{Order: plan.Order{Run: c, What: "COPY"}}
	if s != nil {
		o.What = "RUN " + safetext.String(s.Text, 200)
	}
	var tars []string
	for i := range st.pending {
		p := &st.pending[i]
		if p.from != nil && p.tar == "" {
			if err := st.w.take(ctx, p); err != nil {
				return fmt.Errorf("%s: %w", p.Where, err)
			}
		}
		o.Ops = append(o.Ops, p.op)
		if p.tar != "" {
			tars = append(tars, p.tar)
		}
	}
	out := &lines{say: func(l string) { st.w.o.Say(Progress{Text: l}) }}
	path := filepath.Join(st.w.dir, st.key)
	err := st.w.bottle(ctx, st, o, tars, out, &plan.Build{Take: func(r io.Reader) error { return keepFile(r, path, 2*st.w.most) }})
	out.flush()
	if err != nil {
		return stepError(s, st.pending, out.last, err)
	}
	for _, t := range tars {
		os.Remove(t)
	}
	st.upper, st.pending = path, nil
	return nil
}

// stepError says which step failed, with the last lines of its output.
func stepError(s *dockerfile.Step, waited []pending, last []string, err error) error {
	where := ""
	if s != nil {
		where = fmt.Sprintf("%s:%d: %s %s", s.File, s.Line, s.Op, safetext.String(s.Text, 200))
	} else {
		where = waited[len(waited)-1].Where
	}
	if len(last) == 0 {
		return fmt.Errorf("%s: %w", where, err)
	}
	said := make([]string, len(last))
	for i, l := range last {
		said[i] = safetext.String(l, 200)
	}
	return fmt.Errorf("%s: %w; its last lines: %s", where, err, strings.Join(said, " | "))
}

// take brings files of another stage out of a bottle of it. They are not looked at outside.
func (w *build) take(ctx context.Context, p *pending) error {
	f, err := os.CreateTemp(w.tmp, "copy-")
	if err != nil {
		return err
	}
	defer f.Close()
	data := bufio.NewWriterSize(&bounded{f, 2 * w.most, "the files to copy are"}, 256<<10)
	msg := &lines{say: func(string) {}}
	err = w.bottle(ctx, p.from, order{Pack: &packing{p.sources}, Order: plan.Order{What: "COPY --from"}}, nil, msg, &plan.Build{Data: true}, data)
	msg.flush()
	if err == nil {
		err = data.Flush()
	}
	if err != nil {
		return stepError(nil, []pending{*p}, msg.last, err)
	}
	p.tar = f.Name()
	return nil
}

// errStep says that a step ended with a code of its own.
type errStep struct {
	code   int
	why    string
	closed []string // hosts that it was refused, and why
}

func (e *errStep) Error() string {
	s := fmt.Sprintf("ended with code %d", e.code)
	if e.why != "" {
		s = e.why
	}
	if len(e.closed) > 0 {
		s += "; on the network: " + strings.Join(e.closed, ", ")
	}
	return s
}

// bottle runs an order in a bottle of the stage. Standard output goes to data, if given.
func (w *build) bottle(ctx context.Context, st *stage, o order, tars []string, out io.Writer, b *plan.Build, data ...io.Writer) error {
	in, err := w.orders(o, tars)
	if err != nil {
		return err
	}
	defer in.Close()
	b.Root, b.Upper, b.Program = st.root, st.upper, w.program
	stdout := out
	if len(data) > 0 {
		stdout = data[0]
	}
	var allow, private []string
	if o.Run != nil {
		allow, private = w.o.Allow, w.o.AllowPrivate
	}
	failed := &errStep{}
	rec, err := w.b.Runs.Run(ctx, plan.Options{
		Command: []string{plan.BuildProgram, o.What}, Mode: store.None, Backend: "gvisor",
		Allow: allow, AllowPrivate: private, Stdin: in, Stdout: stdout, Stderr: out, Build: b,
		OnEvent: func(e plan.Event) {
			if e.Kind != "refused" {
				return
			}
			what, why, _ := strings.Cut(e.Text, ": ")
			if at := fmt.Sprintf("%s: %s: %s", safetext.String(e.Name, 100), what, strings.Replace(receipt.Plain(why), "no route names", "no --allow names", 1)); !slices.Contains(failed.closed, at) && len(failed.closed) < 5 {
				failed.closed = append(failed.closed, at)
			}
		},
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case rec.Exit.Reason != receipt.Exited:
		failed.why = string(rec.Exit.Reason) + " " + rec.Exit.Error
	case rec.Exit.Code == 0:
		return nil
	}
	failed.code = rec.Exit.Code
	return failed
}

// orders writes an order and the tars after it to a file without a name, and returns it
// opened at its beginning.
func (w *build) orders(o order, tars []string) (*os.File, error) {
	f, err := os.CreateTemp(w.tmp, "order-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	b, err := json.Marshal(o)
	if err == nil {
		_, err = f.Write(append(b, '\n'))
	}
	for _, name := range tars {
		if err == nil {
			err = appendFile(f, name)
		}
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func appendFile(to io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(to, f)
	return err
}

// image makes the image of a stage, unless it is kept.
func (w *build) image(ctx context.Context, st *stage) (*image.Image, error) {
	cfg, err := json.Marshal(st.config)
	if err != nil {
		return nil, err
	}
	all := key("image", version, st.key, string(cfg))
	if !w.o.NoCache {
		if img, err := w.s.Recall(w.o.Ref, all); img != nil || err != nil {
			return img, err
		}
	}
	src, err := w.assemble(ctx, st)
	if err != nil {
		return nil, err
	}
	img, err := w.s.Add(ctx, w.o.Ref, src, w.o.Pull)
	if err != nil {
		return nil, err
	}
	return img, w.s.Remember(all, img.Digest)
}

// assemble puts what the stage has changed, as one layer, on those of its base image. The
// layer is not compressed, so that its digest depends on nothing but the files.
func (w *build) assemble(ctx context.Context, st *stage) (v1.Image, error) {
	var layers []v1.Layer
	var err error
	if st.base != nil {
		if layers, err = w.s.Layers(st.base); err != nil {
			return nil, err
		}
	}
	if st.changed || len(layers) == 0 {
		top, err := w.top(ctx, st)
		if err != nil {
			return nil, err
		}
		layers = append(layers, top)
	}
	return ofLayers(st.config, layers...)
}

// OneLayer returns the image of one layer, which a file holds.
func OneLayer(file, digest string) (v1.Image, error) {
	l, err := image.FileLayer(file, digest)
	if err != nil {
		return nil, err
	}
	return ofLayers(v1.Config{}, l)
}

func ofLayers(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		t, err := l.MediaType()
		if err != nil {
			return nil, err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: t}); err != nil {
			return nil, err
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config, c.Created, c.History = "linux", runtime.GOARCH, config, v1.Time{Time: Epoch}, nil
	return mutate.ConfigFile(img, c)
}

// top writes the stage's own layer.
func (w *build) top(ctx context.Context, st *stage) (v1.Layer, error) {
	var in io.Reader = strings.NewReader("")
	if st.upper != "" {
		f, err := os.Open(st.upper)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = bufio.NewReaderSize(f, 256<<10)
	}
	out, err := os.CreateTemp(w.tmp, "layer-")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	buf := bufio.NewWriterSize(out, 256<<10)
	digest, err := layer(ctx, in, buf, 2*w.most)
	if err == nil {
		err = buf.Flush()
	}
	if err != nil {
		return nil, err
	}
	return image.FileLayer(out.Name(), digest)
}
