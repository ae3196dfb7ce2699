package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

const (
	maxIssued      = 1000     // tokens remembered of a bottle; the oldest go first
	maxTokenAnswer = 64 << 10 // bytes of an answer that is read for tokens
	minIssued      = 16       // bytes of a token
)

// issued remembers the tokens that servers gave the bottle in their answers, such as a
// registry's for a pull by anybody. The agent may send one as a Bearer token: it is not
// the host's. It is safe for concurrent use.
type issued struct {
	mu    sync.Mutex
	sums  map[[sha256.Size]byte]bool
	order [][sha256.Size]byte
}

func (i *issued) add(token string) {
	if len(token) < minIssued {
		return
	}
	sum := sha256.Sum256([]byte(token))
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sums[sum] {
		return
	}
	if i.sums == nil {
		i.sums = map[[sha256.Size]byte]bool{}
	}
	if len(i.order) == maxIssued {
		delete(i.sums, i.order[0])
		i.order = i.order[1:]
	}
	i.sums[sum], i.order = true, append(i.order, sum)
}

func (i *issued) has(token []byte) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sums[sha256.Sum256(token)]
}

// tokenAnswer reads one answer for a token: "access_token" (RFC 6749, section 5.1) or
// "token" (a container registry's) at the top of a JSON object.
type tokenAnswer struct {
	to   *issued
	body []byte
	left int // attempts; 0: no more is read
}

func (g *Gateway) readTokens() *tokenAnswer { return &tokenAnswer{to: &g.issued, left: 4} }

// look takes the next piece of the decoded answer, before the bottle gets it. It returns
// nil.
func (a *tokenAnswer) look(p []byte) error {
	if a.left == 0 {
		return nil
	}
	a.body = append(a.body, p...)
	text := bytes.TrimSpace(a.body)
	switch {
	case len(text) == 0:
		return nil
	case text[0] != '{' || len(a.body) > maxTokenAnswer:
		a.left, a.body = 0, nil
		return nil
	case text[len(text)-1] != '}' || !bytes.Contains(text, []byte(`token"`)):
		return nil
	}
	var v struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(text, &v); err == nil {
		a.to.add(v.Token)
		a.to.add(v.AccessToken)
		a.left = 0
	} else {
		a.left--
	}
	if a.left == 0 {
		a.body = nil
	}
	return nil
}
