package macos

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/carboy/carboy/internal/macos/session"
)

// The digests of the release's Linux programs, as sha256sum prints them. The release sets
// them: -ldflags "-X github.com/carboy/carboy/internal/macos.digestARM64=...".
var digestARM64, digestAMD64 string

// binary is the carboy that runs in the machine.
type binary struct {
	path   string
	digest string // SHA-256 in hexadecimal digits
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// findBinary returns the program for an architecture: the one that the user named, or
// carboy-linux-ARCH beside this program, exe. Its digest is that of the release, or what
// FILE.sha256 says.
func findBinary(named, exe, arch string) (*binary, error) {
	path, builtIn := named, ""
	if path == "" {
		path = filepath.Join(filepath.Dir(exe), "carboy-linux-"+arch)
		builtIn = map[string]string{"arm64": digestARM64, "amd64": digestAMD64}[arch]
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	switch fi, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &adviceError{fmt.Errorf("%s is missing: the carboy that runs in the machine", path), "put the release's file there, or name one: CARBOY_LINUX=FILE"}
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", path)
	}
	if builtIn != "" {
		return &binary{path, builtIn}, nil
	}
	b, err := readBounded(path+".sha256", 4096)
	if err != nil {
		return nil, &adviceError{fmt.Errorf("the digest of %s is not known: %w", path, err), fmt.Sprintf("take the release's file, or trust what you have: shasum -a 256 %s >%s", word(path), word(path+".sha256"))}
	}
	digest, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	if !hexDigest.MatchString(digest) {
		return nil, fmt.Errorf("%s.sha256: does not begin with 64 hexadecimal digits", path)
	}
	return &binary{path, digest}, nil
}

func readBounded(path string, max int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(b)) > max {
		err = fmt.Errorf("%s is longer than %d bytes", path, max)
	}
	return b, err
}

// verify reports whether the file has its digest.
func (b *binary) verify() error {
	f, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if have := hex.EncodeToString(h.Sum(nil)); have != b.digest {
		return &adviceError{fmt.Errorf("%s has the digest %s, not %s", b.path, have, b.digest), "take both files from one release"}
	}
	return nil
}

// programs is the machine's directory for the Linux carboy.
var programs = "/opt/carboy"

// installed returns the program's path in the machine. The name changes with the content, so a
// newer carboy never runs an older one there.
func (b *binary) installed() string { return programs + "/carboy-" + b.digest[:32] }

// provide installs what carboy itself uses in the machine. It takes no standard input.
const provide = `command -v git >/dev/null && [ -e /etc/ssl/certs/ca-certificates.crt ] || { apt-get update -q && apt-get install -q -y --no-install-recommends git ca-certificates; } </dev/null >&2 || exit`

// install returns the words that put standard input there, if it has the digest. They fail
// without what carboy needs, so the next command tries that again.
func (b *binary) install() []string {
	return []string{"sh", "-c", `set -e; umask 022; ` + provide + `; mkdir -p ` + programs + `; t=$(mktemp ` + programs + `/.new.XXXXXX); trap 'rm -f "$t"' EXIT; cat >"$t"; echo "` + b.digest + `  $t" | sha256sum -c --status; chmod 755 "$t"; mv "$t" ` + b.installed()}
}

// session returns the words that begin a session.
func (b *binary) session() []string { return []string{b.installed(), session.Command} }
