package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/carboy/carboy/internal/bottle"
)

// call runs one method in the shim. If ctx ends first, the call goes on there
// and its answer is dropped.
func (cl *caller) call(ctx context.Context, m method, in, out any, files ...*os.File) error {
	ch, err := cl.begin(m, in, files)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", m, ctx.Err())
	case r, ok := <-ch:
		if !ok {
			return fmt.Errorf("%s: %w", m, bottle.ErrGone)
		}
		if r.Error != "" {
			return &remoteError{text: r.Error, kind: kinds[r.Kind]}
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(r.body, out)
	}
}
