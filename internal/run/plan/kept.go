package plan

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/store"
)

// What a bottle was can be kept in two ways. Its files always can, as what it wrote
// over its root and its workspace, and an agent then begins anew with its old
// conversation. A bottle that is frozen keeps its processes too; they go on only
// under the same build and on the same kind of processor, and where that is not so,
// or fails, there are the files.

// Identity stays the same when a bottle is resumed, so that programs inside still trust
// its gateway and still have valid placeholders.
type Identity struct {
	Authority *ca.Authority
	seed      []byte // of placeholders
	fresh     bool   // it was not written yet
}

type identityFile struct {
	Schema    string `json:"schema"`
	Seed      []byte `json:"seed"`
	Authority string `json:"authority"` // certificate and key, PEM
}

const identityKind = "bottle-identity"

// ReadIdentity reads a bottle's identity, or makes one if there is none yet. It does not
// write it: only a kept bottle needs its identity later, so [Identity.Write] is called
// when the bottle is kept.
func ReadIdentity(l *store.BottleLock, slug string) (*Identity, error) {
	fail := func(err error) (*Identity, error) {
		return nil, fmt.Errorf("identity of bottle %s: %w", slug, err)
	}
	data, err := l.Identity()
	if err != nil {
		return fail(err)
	}
	var f identityFile
	if data != nil {
		if err := store.Decode("identity.json", identityKind, data, &f); err != nil {
			return fail(err)
		}
		if len(f.Seed) != sha256.Size {
			return fail(errors.New("identity.json: field \"seed\" does not have 32 bytes"))
		}
		a, err := ca.Unmarshal([]byte(f.Authority), nil)
		if err != nil {
			return fail(fmt.Errorf("identity.json: field \"authority\": %w", err))
		}
		return &Identity{Authority: a, seed: f.Seed}, nil
	}
	i := &Identity{seed: make([]byte, sha256.Size), fresh: true}
	_, _ = rand.Read(i.seed) // never fails
	if i.Authority, err = ca.New(slug, nil); err != nil {
		return fail(err)
	}
	return i, nil
}

// Write writes the identity into the bottle's directory.
func (i *Identity) Write(l *store.BottleLock) error {
	if !i.fresh {
		return nil
	}
	text, err := i.Authority.Marshal()
	if err != nil {
		return err
	}
	data, err := store.Encode(identityKind, &identityFile{store.Schema(identityKind), i.seed, string(text)})
	if err == nil {
		err = l.WriteIdentity(data)
	}
	i.fresh = err != nil
	return err
}

// seed returns the seed of the placeholders, or nil.
func (g *Grant) seed() []byte {
	if g == nil || g.Identity == nil {
		return nil
	}
	return g.Identity.seed
}

// Resumption names the kept state that a run resumes.
type Resumption struct {
	Kept *store.Kept
	Dir  string
	Live bool // the processes, not the files alone
}
