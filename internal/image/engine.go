package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/carboy/carboy/internal/dockerapi"
)

// engine is a Docker Engine of this machine, used over its socket as the user.
type engine struct{ api *dockerapi.Client }

const (
	maxEngineLine = 1 << 20
	maxBuildLog   = 4 << 10
)

// findEngine finds an engine that answers.
func findEngine(ctx context.Context, env func(string) string) (*engine, error) {
	usual := []string{"/var/run/docker.sock"}
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		usual = append(usual, dir+"/docker.sock")
	}
	paths, err := sockets(env, "DOCKER_HOST", usual)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range paths {
		api := dockerapi.New(p)
		_, err := api.Ping(ctx)
		if err == nil {
			return &engine{api}, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p, err))
	}
	return nil, errors.Join(errs...)
}

// sockets returns the local sockets that a variable names, or the usual ones.
func sockets(env func(string) string, variable string, usual []string) ([]string, error) {
	host := env(variable)
	if host == "" {
		return usual, nil
	}
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil, fmt.Errorf("%s is %.80q, and only sockets of this machine (unix://) are asked", variable, host)
	}
	return []string{path}, nil
}

// onlyBuildKit matches the engine's message about a Dockerfile that its older
// builder cannot read.
var onlyBuildKit = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)buildkit|unknown (instruction|flag)|parse error|classic builder`)
})

// make builds an image from a context, a tar, and writes it to a file in docker
// save's form.
func (e *engine) make(ctx context.Context, src *os.File, j job, say func(string)) error {
	if err := e.build(ctx, src, j.dockerfile, j.tag, say); err != nil {
		return err
	}
	if err := e.export(ctx, j.tag, j.out, j.most); err != nil {
		return fmt.Errorf("the engine does not hand out what it built: %w", err)
	}
	return nil
}

// build builds an image from a context, a tar, under a tag. It tries the older
// builder first, which fetches base images without a login; only BuildKit reads
// newer Dockerfiles.
func (e *engine) build(ctx context.Context, tar io.ReadSeeker, dockerfile, tag string, say func(string)) error {
	err := e.buildWith(ctx, "1", tar, dockerfile, tag, say)
	if err == nil || !onlyBuildKit().MatchString(err.Error()) || ctx.Err() != nil {
		return err
	}
	if _, serr := tar.Seek(0, io.SeekStart); serr != nil {
		return serr
	}
	return e.buildWith(ctx, "2", tar, dockerfile, tag, say)
}

func (e *engine) buildWith(ctx context.Context, version string, tar io.Reader, dockerfile, tag string, say func(string)) error {
	q := url.Values{"version": {version}, "dockerfile": {dockerfile}, "t": {tag}, "rm": {"1"}, "forcerm": {"1"}}
	res, err := e.api.Do(ctx, http.MethodPost, "/build?"+q.Encode(), "application/x-tar", io.NopCloser(tar))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return followBuild(res.Body, say)
}

// followBuild reads the engine's messages during a build. The build has
// succeeded only if it ends without an error and names an image.
func followBuild(r io.Reader, say func(string)) error {
	in := newLines(r, maxEngineLine)
	var t buildTrace
	var log tail
	done := false
	for {
		line, err := in.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read what the engine says: %w", err)
		}
		var m struct {
			ID     string          `json:"id"`
			Stream string          `json:"stream"`
			Status string          `json:"status"`
			Error  string          `json:"error"`
			Aux    json.RawMessage `json:"aux"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return fmt.Errorf("the engine says what is no message: %w", err)
		}
		if m.Error != "" {
			if text := strings.TrimSpace(log.String()); text != "" {
				return fmt.Errorf("%s; it said last: %s", m.Error, text)
			}
			return errors.New(m.Error)
		}
		if m.ID == "moby.buildkit.trace" {
			var raw []byte
			if json.Unmarshal(m.Aux, &raw) == nil {
				t.read(raw, say, &log)
			}
			continue
		}
		var made struct{ ID string }
		if json.Unmarshal(m.Aux, &made) == nil && made.ID != "" {
			done = true
		}
		for text := range strings.Lines(m.Stream) {
			log.add(text)
			if text = strings.TrimSpace(text); text != "" && !strings.HasPrefix(text, "--->") { // an id
				say(text)
			}
		}
		if m.Status != "" && m.ID == "" {
			say(m.Status)
		}
	}
	if !done {
		return errors.New("the engine stopped before it had built anything")
	}
	return nil
}

// export writes an image to a file.
func (e *engine) export(ctx context.Context, tag, file string, most int64) error {
	res, err := e.api.Do(ctx, http.MethodGet, "/images/"+tag+"/get", "", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(res.Body, most+1))
	if err = errors.Join(err, f.Close()); err == nil && n > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return err
}

// lines splits a stream into lines of bounded length.
type lines struct {
	r    io.Reader
	buf  []byte
	most int
	err  error
}

func newLines(r io.Reader, most int) *lines { return &lines{r: r, most: most} }

func (l *lines) next() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf, '\n'); i >= 0 {
			line := l.buf[:i]
			l.buf = l.buf[i+1:]
			if len(bytes.TrimSpace(line)) > 0 {
				return line, nil
			}
			continue
		}
		if l.err != nil {
			line := bytes.TrimSpace(l.buf)
			if l.buf = nil; len(line) > 0 {
				return line, nil
			}
			return nil, l.err
		}
		if len(l.buf) > l.most {
			return nil, fmt.Errorf("a message of more than %d bytes", l.most)
		}
		piece := make([]byte, 32<<10)
		n, err := l.r.Read(piece)
		l.buf, l.err = append(l.buf, piece[:n]...), err
	}
}

// tail keeps the end of a text.
type tail struct{ b []byte }

func (t *tail) add(s string) {
	t.b = append(t.b, s...)
	if over := len(t.b) - maxBuildLog; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
}

func (t *tail) String() string { return string(t.b) }

// buildTrace reads BuildKit's account of a build
// (moby.buildkit.v1.StatusResponse): the names of starting steps, and the
// output of their programs.
type buildTrace struct{ told map[string]bool }

// maxSteps bounds the number of reported steps.
const maxSteps = 1000

func (t *buildTrace) read(raw []byte, say func(string), log *tail) {
	if t.told == nil {
		t.told = map[string]bool{}
	}
	fields(raw, func(field protowire.Number, vertex []byte) {
		switch field {
		case 1: // Vertex: its name is 3, when it began 5
			name, began := "", false
			fields(vertex, func(f protowire.Number, v []byte) {
				switch f {
				case 3:
					name = string(v)
				case 5:
					began = true
				}
			})
			if began && name != "" && !t.told[name] && len(t.told) < maxSteps && !strings.HasPrefix(name, "[internal]") {
				t.told[name] = true
				say(name)
			}
		case 3: // VertexLog: its text is 4
			fields(vertex, func(f protowire.Number, v []byte) {
				if f == 4 {
					log.add(string(v))
				}
			})
		}
	})
}

// fields calls f for each field of type bytes. It skips what is malformed.
func fields(b []byte, f func(protowire.Number, []byte)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		if typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return
			}
			f(num, v)
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return
		}
		b = b[n:]
	}
}
