// The gated delta rule of a batch on a CPU. A task is a sequence and a key head, with its value heads: it computes the
// same bits whatever else is in the batch and whichever thread takes it. F is float (double in a test). No torch.
#pragma once

#include "gated_delta_chunk.h"

namespace lora_train::kernels::chunked {

/// The memory of this thread.
template <class F>
ChunkWork<F>& work_of(const GatedDeltaSizes& shape) {
  static thread_local ChunkWork<F> work;
  work.resize(shape.key_size, shape.value_size, shape.value_heads / shape.key_heads);
  return work;
}

/// The columns of a key head, or of its value heads, of a batch.
template <class F, class T>
struct HeadRows {
  GatedDeltaSizes shape;
  GatedDeltaRows<T> inputs;
  std::int64_t key_head;

  std::int64_t num_values() const { return shape.value_heads / shape.key_heads; }
  std::int64_t value_head(std::int64_t r) const { return key_head * num_values() + r; }
  std::int64_t q_column() const { return key_head * shape.key_size; }
  std::int64_t k_column() const { return (shape.key_heads + key_head) * shape.key_size; }
  std::int64_t v_column(std::int64_t r) const {
    return 2 * shape.key_heads * shape.key_size + value_head(r) * shape.value_size;
  }
  std::int64_t state_size() const { return shape.key_size * shape.value_size; }
  Gates<F> gates(std::int64_t r) const {
    return {std::exp(F{inputs.a_log[value_head(r)]}), F{inputs.dt_bias[value_head(r)]}};
  }

  template <class Machine>
  void load_keys(std::int64_t token, ChunkWork<F>& w) const {
    Machine::template call<load_rows<F, T>>(part(inputs.qkv, token, q_column()), w.num_tokens, w.dk, w.q);
    Machine::template call<load_rows<F, T>>(part(inputs.qkv, token, k_column()), w.num_tokens, w.dk, w.k);
    Machine::template call<norm_keys<F>>(w);
  }
  template <class Machine>
  void load_values(std::int64_t token, std::int64_t r, ChunkWork<F>& w) const {
    Machine::template call<load_rows<F, T>>(part(inputs.qkv, token, v_column(r)), w.num_tokens, w.dv, w.v);
    for (std::int64_t i = 0; i < w.num_tokens; ++i) {
      w.a[i] = load(inputs.a[token + i] + value_head(r));
      w.beta[i] = sigmoid_of(F{load(inputs.b[token + i] + value_head(r))});
    }
  }

  template <class Element>
  static Rows<Element> part(Rows<Element> rows, std::int64_t token, std::int64_t column) {
    return {rows[token] + column, rows.stride};
  }
};

/// Task i: key head i / count, sequence i % count, so that threads share sequences of any lengths evenly.
template <class F, class T>
struct ForwardCall {
  GatedDeltaSizes shape;
  GatedDeltaRows<T> inputs;
  HostRanges sequences;
  F* state;
  Rows<T> out;
  std::int64_t chunk_tokens = kChunkTokens;

  std::int64_t num_tasks() const { return shape.key_heads * sequences.count; }

  template <class Machine>
  void run(std::int64_t begin, std::int64_t end) const {
    ChunkWork<F>& w = work_of<F>(shape);
    for (std::int64_t i = begin; i < end; ++i) {
      const HeadRows<F, T> head{shape, inputs, i / sequences.count};
      const std::int64_t s = i % sequences.count, first = sequences.cu[s], last = sequences.cu[s + 1];
      F* const states =
          sequences.state_rows == nullptr
              ? nullptr
              : state + (sequences.state_rows[s] * shape.value_heads + head.value_head(0)) * head.state_size();
      if (last == first) continue;
      if (last - first == 1 && states != nullptr) {
        step_one<Machine>(head, first, states, w);
      } else {
        scan<Machine>(head, first, last, states, w);
      }
    }
  }

 private:
  Rows<T> out_of(const HeadRows<F, T>& head, std::int64_t token, std::int64_t r) const {
    return head.part(out, token, head.value_head(r) * shape.value_size);
  }

  template <class Machine>
  void step_one(const HeadRows<F, T>& head, std::int64_t token, F* states, ChunkWork<F>& w) const {
    w.start_chunk(1);
    head.template load_keys<Machine>(token, w);
    for (std::int64_t r = 0; r < head.num_values(); ++r) {
      head.template load_values<Machine>(token, r, w);
      Machine::template call<step<Machine, F>>(w, std::exp(head.gates(r).g(w.a[0])), states + r * head.state_size());
      Machine::template call<store_rows<F, T>>(w.o, 1, w.dv, out_of(head, token, r));
    }
  }

  template <class Machine>
  void scan(const HeadRows<F, T>& head, std::int64_t first, std::int64_t last, F* states, ChunkWork<F>& w) const {
    for (std::int64_t r = 0; r < head.num_values(); ++r) {
      if (states == nullptr) {
        w.state(r).fill_zero();
      } else {
        Machine::template call<load_rows<F, F>>(Rows<const F>{states + r * head.state_size(), w.dv}, w.dk, w.dv,
                                                w.state(r));
      }
    }
    for (std::int64_t token = first; token < last; token += chunk_tokens) {
      w.start_chunk(std::min(chunk_tokens, last - token));
      head.template load_keys<Machine>(token, w);
      Machine::template call<multiply_keys<Machine, F>>(w);
      for (std::int64_t r = 0; r < head.num_values(); ++r) {
        head.template load_values<Machine>(token, r, w);
        Machine::template call<decay_chunk<F>>(w, head.gates(r));
        Machine::template call<new_values<Machine, F>>(w, w.state(r));
        Machine::template call<outputs<Machine, F>>(w, w.state(r));
        Machine::template call<store_rows<F, T>>(w.o, w.num_tokens, w.dv, out_of(head, token, r));
        Machine::template call<advance<Machine, F>>(w, w.state(r));
      }
    }
    for (std::int64_t r = 0; states != nullptr && r < head.num_values(); ++r) {
      Machine::template call<store_rows<F, F>>(w.state(r), w.dk, w.dv, Rows<F>{states + r * head.state_size(), w.dv});
    }
  }
};

/// Two scans of a sequence: forward for the states, backward for the gradients. The states of all chunks but the first
/// are kept in scratch: [slots, Hv, dk, dv]. Sequences of n tokens have ceil(n / C) - 1 <= (n - 1) / C of them, so all
/// together have at most floor(N / C) slots.
template <class F, class T>
struct BackwardCall {
  GatedDeltaSizes shape;
  GatedDeltaRows<T> inputs;
  HostRanges sequences;
  Rows<const T> d_out;
  F* scratch;
  GatedDeltaGradientRows<T> gradients;
  double* sums;  ///< [sequences, Hv, 2], overwritten: gradients of A_log and dt_bias
  std::int64_t chunk_tokens = kChunkTokens;

  std::int64_t num_tasks() const { return shape.key_heads * sequences.count; }

  template <class Machine>
  void run(std::int64_t begin, std::int64_t end) const {
    ChunkWork<F>& w = work_of<F>(shape);
    for (std::int64_t i = begin; i < end; ++i) {
      const HeadRows<F, T> head{shape, inputs, i / sequences.count};
      const std::int64_t s = i % sequences.count;
      double* const sums_of_head = sums + 2 * (s * shape.value_heads + head.value_head(0));
      std::fill(sums_of_head, sums_of_head + 2 * head.num_values(), 0.0);
      const Scan scan{sequences.cu[s], sequences.cu[s + 1], slots_before(s)};
      keep_states<Machine>(head, scan, w);
      scan_back<Machine>(head, scan, sums_of_head, w);
    }
  }

 private:
  struct Scan {
    std::int64_t first, last, first_slot;
  };

  std::int64_t slots_before(std::int64_t s) const {
    std::int64_t slots = 0;
    for (std::int64_t i = 0; i < s; ++i) {
      const std::int64_t n = sequences.cu[i + 1] - sequences.cu[i];
      slots += n == 0 ? 0 : (n - 1) / chunk_tokens;
    }
    return slots;
  }

  /// Of the chunk that begins with `token`, not the first one.
  Rows<F> kept(const HeadRows<F, T>& head, const Scan& scan, std::int64_t token, std::int64_t r) const {
    const std::int64_t slot = scan.first_slot + (token - scan.first) / chunk_tokens - 1;
    return {scratch + (slot * shape.value_heads + head.value_head(r)) * head.state_size(), shape.value_size};
  }

  template <class Machine>
  void keep_states(const HeadRows<F, T>& head, const Scan& scan, ChunkWork<F>& w) const {
    for (Matrix<F>& state : w.states) state.fill_zero();
    for (std::int64_t token = scan.first; token + chunk_tokens < scan.last; token += chunk_tokens) {
      w.start_chunk(chunk_tokens);
      head.template load_keys<Machine>(token, w);
      Machine::template call<multiply_keys<Machine, F>>(w);
      for (std::int64_t r = 0; r < head.num_values(); ++r) {
        head.template load_values<Machine>(token, r, w);
        Machine::template call<decay_chunk<F>>(w, head.gates(r));
        Machine::template call<new_values<Machine, F>>(w, w.state(r));
        Machine::template call<advance<Machine, F>>(w, w.state(r));
        Machine::template call<store_rows<F, F>>(w.state(r), w.dk, w.dv, kept(head, scan, token + chunk_tokens, r));
      }
    }
  }

  template <class Machine>
  void scan_back(const HeadRows<F, T>& head, const Scan& scan, double* sums_of_head, ChunkWork<F>& w) const {
    for (Matrix<F>& end : w.states) end.fill_zero();
    const std::int64_t num_chunks = (scan.last - scan.first + chunk_tokens - 1) / chunk_tokens;
    for (std::int64_t chunk = num_chunks - 1; chunk >= 0; --chunk) {
      const std::int64_t token = scan.first + chunk * chunk_tokens;
      w.start_chunk(std::min(chunk_tokens, scan.last - token));
      head.template load_keys<Machine>(token, w);
      Machine::template call<multiply_keys<Machine, F>>(w);
      w.dq.fill_zero();
      w.dk_sum.fill_zero();
      for (std::int64_t r = 0; r < head.num_values(); ++r) {
        head.template load_values<Machine>(token, r, w);
        Machine::template call<load_rows<F, T>>(head.part(d_out, token, head.value_head(r) * shape.value_size),
                                                w.num_tokens, w.dv, w.o);
        Machine::template call<decay_chunk<F>>(w, head.gates(r));
        if (chunk == 0) {
          w.start.fill_zero();
        } else {
          const Rows<F> from = kept(head, scan, token, r);
          Machine::template call<load_rows<F, F>>(Rows<const F>{from.data, from.stride}, w.dk, w.dv, w.start);
        }
        Machine::template call<backward_of_values<Machine, F>>(w, w.start, w.state(r));
        Machine::template call<store_rows<F, T>>(w.v, w.num_tokens, w.dv,
                                                 head.part(gradients.qkv, token, head.v_column(r)));
        store_gates(head, token, r, sums_of_head + 2 * r, w);
      }
      Machine::template call<norm_keys_backward<F>>(w);
      Machine::template call<store_rows<F, T>>(w.dq, w.num_tokens, w.dk,
                                               head.part(gradients.qkv, token, head.q_column()));
      Machine::template call<store_rows<F, T>>(w.dk_sum, w.num_tokens, w.dk,
                                               head.part(gradients.qkv, token, head.k_column()));
    }
  }

  void store_gates(const HeadRows<F, T>& head, std::int64_t token, std::int64_t r, double* sums_of_value,
                   const ChunkWork<F>& w) const {
    const Gates<F> gates = head.gates(r);
    double dg = 0;
    for (std::int64_t i = w.num_tokens - 1; i >= 0; --i) {
      dg += w.dG[i];
      const F da = static_cast<F>(dg) * gates.g_slope(w.a[i]);
      sums_of_value[0] += dg * static_cast<double>(w.g[i]);
      sums_of_value[1] += static_cast<double>(da);
      store(gradients.a[token + i] + head.value_head(r), da);
      store(gradients.b[token + i] + head.value_head(r), w.dbeta[i] * w.beta[i] * (1 - w.beta[i]));
    }
  }
};

}  // namespace lora_train::kernels::chunked
